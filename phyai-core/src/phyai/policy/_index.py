"""An index over predicates: which of many may hold for a call, without asking each.

Sets of items are bit masks. For every fact there is a table that maps a value to the items whose conditions on that
fact accept it; a call is the intersection of the masks of its facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from phyai.facts import FactValue
from phyai.predicates import Literal, OneOf, Predicate
from phyai.predicates._algebra import conjuncts

T = TypeVar("T")

#: Values remembered per fact. M takes many; what is beyond is worked out again.
_MAX_REMEMBERED = 1024


class RuleIndex(Generic[T]):
    """Items in order, each with a predicate.

    >>> from phyai.predicates import match
    >>> index = RuleIndex([("a", match({"op": "gemm", "shape.M": "<=8"})), ("b", match({"op": "rope"}))])
    >>> index.candidates({"op": "gemm", "shape.M": 5}), index.possible({"op": "gemm"}), index.candidates({"op": "gemm"})
    (['a'], ['a'], [])
    """

    def __init__(self, items: Iterable[tuple[T, Predicate]]) -> None:
        self._items: list[T] = []
        self._tables: dict[str, _Table] = {}
        for position, (item, predicate) in enumerate(items):
            self._items.append(item)
            for part in conjuncts(predicate):
                if isinstance(part, Literal):
                    self._tables.setdefault(part.fact, _Table()).add(part, 1 << position)
        self._everything = (1 << len(self._items)) - 1

    def candidates(self, facts: Mapping[str, FactValue]) -> list[T]:
        """All items, in order, whose predicate may hold for ``facts``."""
        alive = self._everything
        for fact, table in self._tables.items():
            alive &= ~table.denied(facts.get(fact))
            if not alive:
                break
        return [self._items[i] for i in bits(alive)]

    def possible(self, facts: Mapping[str, FactValue]) -> list[T]:
        """All items, in order, whose predicate may hold once facts that are not in ``facts`` are known."""
        alive = self._everything
        for fact, table in self._tables.items():
            if fact in facts:
                alive &= ~table.denied(facts[fact])
        return [self._items[i] for i in bits(alive)]


class _Table:
    """The conditions on one fact: by value where they list values, else one by one."""

    def __init__(self) -> None:
        self._listing = 0  # items that list the values they accept
        self._listed: dict[FactValue, int] = {}
        self._others: dict[Literal, int] = {}
        self._remembered: dict[FactValue | None, int] = {}

    def add(self, literal: Literal, item: int) -> None:
        if isinstance(literal, OneOf) and not literal.negated and not self._listing & item:
            self._listing |= item
            for value in literal.values:
                self._listed[value] = self._listed.get(value, 0) | item
        else:
            self._others[literal] = self._others.get(literal, 0) | item

    def denied(self, value: FactValue | None) -> int:
        """The mask of the items with a condition that does not accept ``value`` (None: the fact is absent)."""
        mask = self._remembered.get(value)
        if mask is None:
            mask = self._listing & ~(0 if value is None else self._listed.get(value, 0))
            for literal, items in self._others.items():
                if not literal.accepts(value):
                    mask |= items
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[value] = mask
        return mask


def bits(mask: int) -> Iterator[int]:
    """The positions of the ones in a mask, from the lowest."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
