"""The six literals, which between them test every kind of fact."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import ClassVar

import attrs

from phyai.facts import FactKind, FactValue
from phyai.predicates._algebra import Literal, Predicate
from phyai.predicates._globs import compile_glob
from phyai.predicates._order import ORDERINGS, compare_archs, compare_versions

_TYPES: dict[FactKind, type | tuple[type, ...]] = {
    FactKind.NUMBER: (int, float),
    FactKind.NAME: str,
    FactKind.ARCH: str,
    FactKind.FLAG: bool,
}
#: A value of a kind, with its article.
NOUNS = {FactKind.NUMBER: "a number", FactKind.VERSION: "a version", FactKind.ARCH: "an architecture"}
_FLIPPED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def show(value: object) -> str:
    """A value as people write it in a policy."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(value)) + "}"
    return str(value)


def _listed(values: Iterable[object]) -> str:
    shown = [show(v) for v in values]
    return shown[0] if len(shown) == 1 else "one of " + ", ".join(shown)


def _unique(values: Iterable[FactValue]) -> tuple[FactValue, ...]:
    return tuple(dict.fromkeys(values))


@attrs.frozen(cache_hash=True)
class Present(Literal):
    """The fact is there; negated: it is absent."""

    def accepts(self, value: FactValue | None) -> bool:
        return (value is None) is self.negated

    def test(self, value: FactValue) -> bool:
        return True

    def needs(self) -> str:
        return "absent" if self.negated else "present"

    def mismatch(self, value: FactValue) -> str:
        return f"{self.fact}={show(value)} is present, must be absent"


@attrs.frozen(cache_hash=True)
class OneOf(Literal):
    """The value is one of ``values``: of a number, name, flag or architecture."""

    kind: FactKind
    values: tuple[FactValue, ...] = attrs.field(converter=_unique, eq=frozenset)

    def test(self, value: FactValue) -> bool | None:
        if not isinstance(value, _TYPES[self.kind]) or (value.__class__ is bool and self.kind is not FactKind.FLAG):
            return None
        return value in self.values

    def negate(self) -> Predicate:
        if self.kind is FactKind.FLAG:
            return attrs.evolve(self, values=(not self.values[0],))
        return attrs.evolve(self, negated=not self.negated)

    def family(self) -> Hashable:
        # "true or false" denies to "false and true": flags stay apart.
        return None if self.kind is FactKind.FLAG else (self.fact, self.kind)

    def union(self, family: Sequence[Predicate]) -> Literal:
        if len(family) == 1:
            return self
        return attrs.evolve(self, values=[v for one in family if isinstance(one, OneOf) for v in one.values])

    def needs(self) -> str:
        return f"other than {', '.join(map(show, self.values))}" if self.negated else _listed(self.values)

    def mismatch(self, value: FactValue) -> str:
        if self.negated:
            return f"{self.fact}={show(value)} is excluded"
        return f"{self.fact}={show(value)} is not {_listed(self.values)}"


@attrs.frozen(cache_hash=True)
class Compare(Literal):
    """``value order bound`` for a number, version or architecture. A number's negation is the opposite order."""

    kind: FactKind
    order: str
    bound: int | float | str

    def test(self, value: FactValue) -> bool | None:
        if self.kind is FactKind.NUMBER:
            return ORDERINGS[self.order](value, self.bound) if is_number(value) else None
        if not isinstance(value, str):
            return None
        compare = compare_versions if self.kind is FactKind.VERSION else compare_archs
        return compare(value, self.order, str(self.bound))

    def negate(self) -> Predicate:
        if self.kind is FactKind.NUMBER:
            return attrs.evolve(self, order=_FLIPPED[self.order])
        # A gfx942 is not >= sm90 and not < sm90 either; and 0.8rc1 is not < 0.8 and not >= 0.8.
        return attrs.evolve(self, negated=not self.negated)

    def needs(self) -> str:
        text = f"{self.order}{self.bound}" if self.kind is FactKind.VERSION else f"{self.order} {self.bound}"
        return f"not {text}" if self.negated else text

    def mismatch(self, value: FactValue) -> str:
        if self.test(value) is None:
            return f"{self.fact}={show(value)} is not {NOUNS[self.kind]}"
        text = attrs.evolve(self, negated=False).needs()
        return (
            f"{self.fact}={show(value)} is {text}, must not be"
            if self.negated
            else f"{self.fact}={value} is not {text}"
        )


@attrs.frozen(cache_hash=True)
class MultipleOf(Literal):
    """The number is a multiple of ``modulus``, a positive integer."""

    modulus: int
    kind: ClassVar[FactKind] = FactKind.NUMBER

    def test(self, value: FactValue) -> bool | None:
        return value % self.modulus == 0 if is_number(value) else None  # type: ignore[operator]

    def needs(self) -> str:
        return f"{'not ' if self.negated else ''}a multiple of {self.modulus}"

    def mismatch(self, value: FactValue) -> str:
        if self.negated:
            return f"{self.fact}={show(value)} is a multiple of {self.modulus}, must not be"
        return f"{self.fact}={show(value)} is not a multiple of {self.modulus}"


@attrs.frozen(cache_hash=True)
class Glob(Literal):
    """The name matches ``pattern`` (``*``, ``?``, ``[abc]``, ``[!abc]``; case matters)."""

    pattern: str
    kind: ClassVar[FactKind] = FactKind.NAME

    def test(self, value: FactValue) -> bool | None:
        return bool(compile_glob(self.pattern)(value)) if isinstance(value, str) else None

    def needs(self) -> str:
        return f"{'no' if self.negated else 'a'} match of {self.pattern}"

    def mismatch(self, value: FactValue) -> str:
        if self.negated:
            return f"{self.fact}={show(value)} matches {self.pattern}, must not"
        return f"{self.fact}={show(value)} does not match {self.pattern}"


@attrs.frozen(cache_hash=True)
class Contains(Literal):
    """The set has at least one of ``elements``; negated: none of them."""

    elements: tuple[str, ...] = attrs.field(converter=_unique, eq=frozenset)
    kind: ClassVar[FactKind] = FactKind.SET

    def test(self, value: FactValue) -> bool | None:
        return not value.isdisjoint(self.elements) if isinstance(value, frozenset) else None

    def family(self) -> Hashable:
        return (self.fact, self.kind)

    def union(self, family: Sequence[Predicate]) -> Literal:
        if len(family) == 1:
            return self
        return attrs.evolve(self, elements=[e for one in family if isinstance(one, Contains) for e in one.elements])

    def needs(self) -> str:
        return f"a set {'without' if self.negated else 'with'} {_listed(self.elements)}"

    def mismatch(self, value: FactValue) -> str:
        if self.negated:
            return f"{self.fact}={show(value)} has {_listed(self.elements)}, must not"
        return f"{self.fact}={show(value)} lacks {_listed(self.elements)}"
