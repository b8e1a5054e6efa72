"""Which pairs of many predicates may hold together: a cheap, one-sided answer that leaves few pairs to the exact test.

What a predicate asks of a fact is bounded by a few points, or by an interval, of an ordered domain: absence, numbers,
names (a glob by its literal prefix), architectures. Sets of predicates are bit masks, so the predicates whose bounds
meet those of another are found by two binary searches, for any number of predicates.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from operator import or_
from typing import Any

import attrs

from phyai.facts import FactKind
from phyai.predicates import AllOf, AnyOf, Compare, Glob, Literal, OneOf, Predicate, Present
from phyai.predicates._order import arch_key

Key = tuple[Any, ...]

_ABSENT: Key = (0,)
_LAST = chr(0x10FFFF)
_INFINITY = float("inf")


@attrs.frozen
class _Bound:
    """Values from ``low`` to ``high``; of those only ``points``, where that is not None."""

    low: Key
    high: Key
    points: frozenset[Key] | None = None

    @classmethod
    def of(cls, points: frozenset[Key]) -> _Bound:
        return cls(min(points), max(points), points) if points else _NOTHING

    def meet(self, other: _Bound) -> _Bound:
        if self.points is not None and other.points is not None:
            return _Bound.of(self.points & other.points)
        low, high = max(self.low, other.low), min(self.high, other.high)
        points = self.points if self.points is not None else other.points
        return _Bound(low, high) if points is None else _Bound.of(frozenset(p for p in points if low <= p <= high))

    def join(self, other: _Bound) -> _Bound:
        if self.points is not None and other.points is not None:
            return _Bound.of(self.points | other.points)
        return _Bound(min(self.low, other.low), max(self.high, other.high))


_THERE = _Bound((1,), (9,))
_NOTHING = _Bound((9,), (0,), frozenset())


def may_overlap(predicates: Sequence[Predicate]) -> list[int]:
    """For each predicate, the mask of those that may hold together with it: bit i for ``predicates[i]``.

    >>> from phyai.predicates import match
    >>> rules = [{"op": "gemm"}, {"op": "gemm", "shape.M": "<8"}, {"shape.M": ">9"}, {"op": "rope"}]
    >>> [f"{mask:04b}" for mask in may_overlap([match(r) for r in rules])]
    ['0111', '0011', '1101', '1100']
    """
    everyone = (1 << len(predicates)) - 1
    by_fact: dict[str, dict[int, _Bound]] = {}
    for i, predicate in enumerate(predicates):
        for fact, bound in _bounds(predicate).items():
            by_fact.setdefault(fact, {})[i] = bound
    masks = [everyone] * len(predicates)
    for bounds in by_fact.values():
        free = everyone & ~sum(1 << i for i in bounds)
        for i, mask in _meeting(bounds).items():
            masks[i] &= mask | free
    return masks


def _meeting(bounds: dict[int, _Bound]) -> dict[int, int]:
    """For each bound, the mask of those that it meets."""
    lows = sorted((bound.low, 1 << i) for i, bound in bounds.items())
    highs = sorted((bound.high, 1 << i) for i, bound in bounds.items())
    low_keys, high_keys = [low for low, _ in lows], [high for high, _ in highs]
    begun = [0, *accumulate((item for _, item in lows), or_)]  # begun[n]: the n lowest
    ended = [0, *accumulate((item for _, item in highs), or_)]
    pointed = 0
    at_point: dict[Key, int] = {}
    for i, bound in bounds.items():
        if bound.points is not None:
            pointed |= 1 << i
            for point in bound.points:
                at_point[point] = at_point.get(point, 0) | 1 << i
    meeting = {}
    for i, bound in bounds.items():
        mask = begun[bisect_right(low_keys, bound.high)] & ~ended[bisect_left(high_keys, bound.low)]
        if bound.points is not None:
            mask &= ~pointed | reduce(or_, (at_point[point] for point in bound.points), 0)
        meeting[i] = mask
    return meeting


def _bounds(predicate: Predicate) -> dict[str, _Bound]:
    """A bound for every fact that a predicate bounds: it holds for no value outside."""
    if isinstance(predicate, Literal):
        return {predicate.fact: _bound(predicate)}
    found: dict[str, _Bound] = {}
    if isinstance(predicate, AllOf):
        for part in predicate.parts:
            for fact, bound in _bounds(part).items():
                found[fact] = found[fact].meet(bound) if fact in found else bound
    elif isinstance(predicate, AnyOf) and predicate.parts:
        branches = [_bounds(part) for part in predicate.parts]
        for fact in branches[0].keys() & set.intersection(*(set(branch) for branch in branches)):
            found[fact] = reduce(_Bound.join, (branch[fact] for branch in branches))
    return found


def _bound(literal: Literal) -> _Bound:
    if isinstance(literal, Present) and literal.negated:
        return _Bound.of(frozenset({_ABSENT}))
    if literal.negated:
        return _THERE
    if isinstance(literal, OneOf):
        return _Bound.of(frozenset(_key(literal.kind, value) for value in literal.values))
    if isinstance(literal, Glob):
        prefix = literal.pattern[: min(i for c in "*?[" if (i := literal.pattern.find(c)) >= 0)]
        return _Bound((2, prefix), (2, prefix + _LAST))
    if isinstance(literal, Compare) and literal.kind in (FactKind.NUMBER, FactKind.ARCH):
        key = _key(literal.kind, literal.bound)
        if literal.order.startswith("<"):
            return _Bound((*key[:-1], () if literal.kind is FactKind.ARCH else -_INFINITY), key)
        if literal.order.startswith(">"):
            return _Bound(key, (*key[:-1], (_INFINITY,) if literal.kind is FactKind.ARCH else _INFINITY))
    return _THERE


def _key(kind: FactKind, value: Any) -> Key:
    if kind is FactKind.ARCH and (arch := arch_key(str(value))) is not None:
        return (3, *arch)
    return (2, value) if isinstance(value, str) else (1, value)
