"""Memo keys: which values of a fact no predicate can tell apart."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial

import attrs

from phyai.facts import FactKind, FactValue
from phyai.predicates._algebra import Literal, Predicate
from phyai.predicates._literals import Compare, MultipleOf, OneOf
from phyai.predicates._numbers import Number, first_whole


@attrs.frozen
class Partition:
    """The values of one number fact, cut into cells: intervals × residues.

    Two values of one cell agree on every literal that the partition was made from. ``cuts`` are where
    intervals begin; ``moduli`` are tested for divisibility.

    >>> from phyai.predicates import match
    >>> p = match({"shape.M": "<=64", "none_of": [{"shape.M": "%16"}]})
    >>> m = Partition.of("shape.M", p.atoms())
    >>> m.cell(5) == m.cell(7), m.cell(16) == m.cell(5), m.cell(65) == m.cell(64)
    (True, False, False)
    >>> m.samples(1, 100)
    (1, 16, 65, 80)
    """

    fact: str
    cuts: tuple[Number, ...]
    moduli: tuple[int, ...]

    @classmethod
    def of(cls, fact: str, literals: Iterable[Literal]) -> Partition:
        """The coarsest such partition for those of ``literals`` that ask for a number of ``fact``."""
        cuts: set[Number] = set()
        moduli: set[int] = set()
        for literal in literals:
            if literal.fact != fact:
                continue
            if isinstance(literal, Compare) and literal.kind is FactKind.NUMBER:
                bound: Number = literal.bound  # type: ignore[assignment]
                cuts.add(bound if literal.order in ("<", ">=") else _after(bound))
            elif isinstance(literal, OneOf) and literal.kind is FactKind.NUMBER:
                for value in literal.values:
                    cuts.update((value, _after(value)))  # type: ignore[arg-type]
            elif isinstance(literal, MultipleOf):
                moduli.add(literal.modulus)
        return cls(fact, tuple(sorted(cuts)), tuple(sorted(moduli)))

    def function(self) -> Callable[[Number], int]:
        """``cell`` as a bare function, for the hot path."""
        find = partial(bisect_right, self.cuts)
        if not self.moduli:
            return find
        if len(self.moduli) == 1:
            modulus = self.moduli[0]
            return lambda value: find(value) * 2 + (value % modulus == 0)
        return self.cell

    def cell(self, value: Number) -> int:
        """A small number for the cell that ``value`` lies in."""
        cell = bisect_right(self.cuts, value)
        for modulus in self.moduli:
            cell = cell * 2 + (value % modulus == 0)
        return cell

    def samples(self, low: int, high: int) -> tuple[int, ...]:
        """The smallest whole number of every cell that ``[low, high]`` reaches, in order."""
        edges = [low, *(math.ceil(c) for c in self.cuts if low < c <= high), high + 1]
        found: set[int] = set()
        for start, end in itertools.pairwise(edges):
            for pattern in itertools.product((True, False), repeat=len(self.moduli)):
                divisors = [m for m, divides in zip(self.moduli, pattern, strict=True) if divides]
                avoided = [m for m, divides in zip(self.moduli, pattern, strict=True) if not divides]
                value = first_whole(start, end - 1, divisors, avoided)
                if value is not None:
                    found.add(value)
        return tuple(sorted(found))


def _after(bound: Number) -> Number:
    """Where the numbers above ``bound`` begin."""
    return math.nextafter(bound, math.inf)


@attrs.frozen
class MemoKey:
    """What a decision can depend on: for each of the facts that vary, the cell that it lies in.

    >>> from phyai.predicates import match
    >>> key = MemoKey.of([match({"shape.M": "<=64", "op": "gemm"})], dynamic={"shape.M", "shape.S"})
    >>> key.facts, key({"shape.M": 5}) == key({"shape.M": 7}), key({"shape.M": 65}) == key({"shape.M": 7})
    (('shape.M',), True, False)
    """

    cells: tuple[tuple[str, Callable[[FactValue | None], Hashable]], ...] = attrs.field(repr=False)

    @classmethod
    def of(cls, predicates: Iterable[Predicate], *, dynamic: Collection[str]) -> MemoKey:
        """The key for deciding by ``predicates`` when only the facts in ``dynamic`` vary."""
        by_fact: dict[str, dict[Literal, None]] = {}
        for predicate in predicates:
            for literal in predicate.literals():
                if literal.fact in dynamic:
                    by_fact.setdefault(literal.fact, {})[literal] = None
        return cls(tuple((fact, _cell_function(fact, tuple(by_fact[fact]))) for fact in sorted(by_fact)))

    @property
    def facts(self) -> tuple[str, ...]:
        """The facts that matter, sorted."""
        return tuple(fact for fact, _ in self.cells)

    def __call__(self, facts: Mapping[str, FactValue]) -> tuple[Hashable, ...]:
        return tuple([cell(facts.get(name)) for name, cell in self.cells])


def _cell_function(fact: str, literals: tuple[Literal, ...]) -> Callable[[FactValue | None], Hashable]:
    cell_of_number = Partition.of(fact, literals).function()

    def cell(value: FactValue | None) -> Hashable:
        if value.__class__ is int or value.__class__ is float:
            return cell_of_number(value)
        return tuple([literal.accepts(value) for literal in literals])

    return cell
