"""An index over predicates: which of many may hold for a call, without asking each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from phyai.facts import FactValue
from phyai.predicates import Predicate

T = TypeVar("T")


class RuleIndex(Generic[T]):
    """Items in order, each with a predicate. ``candidates`` yields, in that order, all that may hold."""

    def __init__(self, items: Iterable[tuple[T, Predicate]]) -> None:
        self._items = tuple(item for item, _ in items)

    def candidates(self, facts: Mapping[str, FactValue], *, partial: bool = False) -> Iterator[T]:
        return iter(self._items)
