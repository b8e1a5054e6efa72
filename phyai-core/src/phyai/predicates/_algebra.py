"""Predicates, and how they combine.

Negation is pushed down to the literals at once, so that a predicate is a tree of :class:`AllOf` and
:class:`AnyOf` over :class:`Literal`. A literal over an absent fact is false whether it is negated or
not; only a literal about absence itself is true then.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from phyai.facts import FactValue

Known = Mapping[str, FactValue]


class Predicate:
    """A condition on facts. Immutable; equal predicates compare equal and hash alike."""

    # Not an ABC: isinstance() of one costs ten times as much, and the intersection asks it all the time.

    __slots__ = ()

    def holds(self, facts: Known) -> bool:
        """Whether the condition holds; a fact that is not in ``facts`` is absent."""
        raise NotImplementedError

    def reasons(self, facts: Known) -> tuple[str, ...]:
        """Why the condition does not hold, one phrase for each part that fails; empty when it holds."""
        raise NotImplementedError

    def negate(self) -> Predicate:
        """The condition with its negation pushed down to the literals."""
        raise NotImplementedError

    def given(self, facts: Known, *, absent: Container[str] = ()) -> Predicate:
        """What is left to ask once ``facts`` are known and those in ``absent`` are known to be absent.

        Literals over other facts stay. With every fact known, or named in ``absent``, the result is
        :data:`TRUE` or :data:`FALSE`.
        """
        raise NotImplementedError

    def literals(self) -> Iterator[Literal]:
        """Every literal, in order, repetitions included."""
        raise NotImplementedError

    def why_not(self, facts: Known) -> str | None:
        """The reasons as one line, or None when the condition holds."""
        reasons = self.reasons(facts)
        return "; ".join(reasons) if reasons else None

    def atoms(self) -> frozenset[Literal]:
        """The literals: two calls on which all of them agree cannot be told apart."""
        return frozenset(self.literals())

    @property
    def facts(self) -> frozenset[str]:
        """Names of the facts that are read."""
        return frozenset(literal.fact for literal in self.literals())

    def to_yaml(self) -> dict[str, Any]:
        """Plain data that :func:`~phyai.predicates.match` reads back to an equal predicate."""
        from phyai.predicates._yaml import to_yaml

        return to_yaml(self)


@attrs.frozen
class Literal(Predicate):
    """One test of one fact."""

    fact: str
    negated: bool = attrs.field(default=False, kw_only=True)

    def test(self, value: FactValue) -> bool | None:
        """The test without its negation; None for a value of another kind, which is never accepted."""
        raise NotImplementedError

    def needs(self) -> str:
        """What is asked of the value, to be read after the fact's name and "is"."""
        raise NotImplementedError

    def mismatch(self, value: FactValue) -> str:
        """Why ``value``, which is there, is not accepted."""
        raise NotImplementedError

    def family(self) -> Hashable:
        """What literals share that can be said as one (a or b: one of a, b); None when there are none such."""
        return None

    def union(self, family: Sequence[Predicate]) -> Literal:
        """The one literal that says the same as its whole family, or equal literals, joined by "or"."""
        return self

    def accepts(self, value: FactValue | None) -> bool:
        """Whether the literal holds for this value of its fact; None is absence."""
        if value is None:
            return False
        outcome = self.test(value)
        return outcome is not None and outcome is not self.negated

    def holds(self, facts: Known) -> bool:
        return self.accepts(facts.get(self.fact))

    def reasons(self, facts: Known) -> tuple[str, ...]:
        value = facts.get(self.fact)
        if self.accepts(value):
            return ()
        if value is not None:
            return (self.mismatch(value),)
        return (lacking(self.fact, (self.needs(),)),)

    def negate(self) -> Predicate:
        return attrs.evolve(self, negated=not self.negated)

    def given(self, facts: Known, *, absent: Container[str] = ()) -> Predicate:
        if self.fact in facts or self.fact in absent:
            return TRUE if self.holds(facts) else FALSE
        return self

    def literals(self) -> Iterator[Literal]:
        yield self

    def __str__(self) -> str:
        return f"{self.fact} is {self.needs()}"


@attrs.frozen
class Compound(Predicate):
    """Several predicates as one."""

    parts: tuple[Predicate, ...] = attrs.field(eq=frozenset)

    def literals(self) -> Iterator[Literal]:
        for part in self.parts:
            yield from part.literals()

    @functools.cached_property
    def facts(self) -> frozenset[str]:
        return frozenset(literal.fact for literal in self.literals())


@attrs.frozen(cache_hash=True)
class AllOf(Compound):
    """Every part holds. Made by :func:`all_of`, which normalises."""

    def holds(self, facts: Known) -> bool:
        for part in self.parts:  # noqa: SIM110 - all() over a generator costs twice as much
            if not part.holds(facts):
                return False
        return True

    def reasons(self, facts: Known) -> tuple[str, ...]:
        reasons: dict[str, None] = {}
        for part in self.parts:
            if isinstance(part, Literal) and facts.get(part.fact) is None and not part.holds(facts):
                same = (p for p in self.parts if isinstance(p, Literal) and p.fact == part.fact)
                reasons[lacking(part.fact, tuple(p.needs() for p in same))] = None  # once for all that ask for it
            else:
                reasons.update(dict.fromkeys(part.reasons(facts)))
        return tuple(reasons)

    def negate(self) -> Predicate:
        return any_of(*(part.negate() for part in self.parts))

    def given(self, facts: Known, *, absent: Container[str] = ()) -> Predicate:
        left = []
        for part in self.parts:
            rest = part.given(facts, absent=absent)
            if rest is FALSE:
                return FALSE  # most kernels are for another device or dtype: what else they ask does not matter
            left.append(rest)
        return all_of(*left)

    def __str__(self) -> str:
        return " and ".join(map(str, self.parts)) if self.parts else "always"


@attrs.frozen(cache_hash=True)
class AnyOf(Compound):
    """At least one part holds. Made by :func:`any_of`, which normalises."""

    def holds(self, facts: Known) -> bool:
        for part in self.parts:  # noqa: SIM110
            if part.holds(facts):
                return True
        return False

    def reasons(self, facts: Known) -> tuple[str, ...]:
        if not self.parts:
            return ("it can never hold",)
        branches = [part.reasons(facts) for part in self.parts]
        if not all(branches):
            return ()
        listed = "; ".join(f"({n}) {' and '.join(branch)}" for n, branch in enumerate(branches, 1))
        return (f"none of {len(branches)} alternatives holds: {listed}",)

    def negate(self) -> Predicate:
        return all_of(*(part.negate() for part in self.parts))

    def given(self, facts: Known, *, absent: Container[str] = ()) -> Predicate:
        left = []
        for part in self.parts:
            rest = part.given(facts, absent=absent)
            if rest is TRUE:
                return TRUE
            left.append(rest)
        return any_of(*left)

    def __str__(self) -> str:
        return "(" + " or ".join(map(str, self.parts)) + ")" if self.parts else "never"


def lacking(fact: str, needs: tuple[str, ...]) -> str:
    """What to say when a fact that is asked for is absent."""
    where = "not installed" if fact.startswith("lib.") else "absent"
    return f"{fact} is {where}" + (", must be present" if needs == ("present",) else f" (needs {' and '.join(needs)})")


TRUE: Predicate = AllOf(())
FALSE: Predicate = AnyOf(())


def all_of(*predicates: Predicate) -> Predicate:
    """The predicate that holds when every one of ``predicates`` does; :data:`TRUE` for none.

    >>> from phyai.predicates import match
    >>> str(all_of(match({"op": "gemm"}), match({"shape.K": "%16"})))
    'op is gemm and shape.K is a multiple of 16'
    """
    parts = _gather(predicates, AllOf, negated=True)  # not a, and not b: one literal "neither a nor b"
    if FALSE in parts:
        return FALSE
    return parts[0] if len(parts) == 1 else AllOf(parts) if parts else TRUE


def any_of(*predicates: Predicate) -> Predicate:
    """The predicate that holds when at least one of ``predicates`` does; :data:`FALSE` for none."""
    parts = _gather(predicates, AnyOf, negated=False)  # a, or b: one literal "one of a, b"
    if TRUE in parts:
        return TRUE
    return parts[0] if len(parts) == 1 else AnyOf(parts) if parts else FALSE


def none_of(*predicates: Predicate) -> Predicate:
    """The predicate that denies each of ``predicates``: their negations, pushed down to the literals.

    >>> from phyai.predicates import match
    >>> p = none_of(match({"dtype.q": "fp32"}))
    >>> p.holds({"dtype.q": "bf16"}), p.holds({"dtype.q": "fp32"}), p.holds({})
    (True, False, False)
    """
    return all_of(*(predicate.negate() for predicate in predicates))


def _gather(
    predicates: Iterable[Predicate], flat: type[AllOf] | type[AnyOf], *, negated: bool
) -> tuple[Predicate, ...]:
    """The parts, those of nested ones of the same sort included: each once, and families as one literal."""
    groups: dict[Hashable, list[Predicate]] = {}
    for predicate in predicates:
        for part in predicate.parts if isinstance(predicate, flat) else (predicate,):
            family = part.family() if isinstance(part, Literal) and part.negated is negated else None
            groups.setdefault(part if family is None else family, []).append(part)
    return tuple(group[0].union(group) if isinstance(group[0], Literal) else group[0] for group in groups.values())


def conjuncts(predicate: Predicate) -> Iterable[Predicate]:
    """The parts that must all hold: of an :class:`AllOf` its own, else the predicate itself."""
    return predicate.parts if isinstance(predicate, AllOf) else (predicate,)
