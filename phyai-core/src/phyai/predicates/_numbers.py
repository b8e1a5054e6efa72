"""A number that satisfies many literals at once, or the proof that there is none."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

import attrs

from phyai.predicates._algebra import Literal
from phyai.predicates._literals import Compare, MultipleOf, OneOf

Number = int | float


@attrs.frozen
class Bounds:
    """An interval of numbers."""

    low: Number
    high: Number = math.inf
    low_open: bool = False
    high_open: bool = False

    def narrow(self, order: str, bound: Number) -> Bounds:
        """The part of the interval where ``x order bound``."""
        is_open = order in ("<", ">")
        if order in (">", ">="):
            if bound < self.low or (bound == self.low and not is_open):
                return self
            return Bounds(bound, self.high, is_open, self.high_open)
        if bound > self.high or (bound == self.high and not is_open):
            return self
        return Bounds(self.low, bound, self.low_open, is_open)

    def whole(self) -> tuple[int, Number]:
        """The first and the last whole number of the interval (the last may be infinite)."""
        low = math.floor(self.low) + 1 if self.low_open else math.ceil(self.low)
        if self.high == math.inf:
            return low, math.inf
        return low, math.ceil(self.high) - 1 if self.high_open else math.floor(self.high)


def find_number(literals: Iterable[Literal], *, minimum: Number, integer: bool) -> Number | None:
    """A number >= ``minimum`` that all the literals accept, the smallest where it is whole; None if none is."""
    bounds = Bounds(minimum)
    divisors: list[int] = []
    avoided: list[int] = []
    excluded: set[Number] = set()
    chosen: tuple[Number, ...] | None = None
    literals = tuple(literals)
    for literal in literals:
        if isinstance(literal, Compare):
            bounds = bounds.narrow(literal.order, literal.bound)  # type: ignore[arg-type]
        elif isinstance(literal, MultipleOf):
            (avoided if literal.negated else divisors).append(literal.modulus)
        elif isinstance(literal, OneOf) and literal.negated:
            excluded.update(literal.values)  # type: ignore[arg-type]
        elif isinstance(literal, OneOf):
            chosen = literal.values  # type: ignore[assignment]
    if chosen is not None:
        return next((v for v in chosen if _fits(v, minimum, integer) and all(x.accepts(v) for x in literals)), None)
    whole = first_whole(*bounds.whole(), divisors, avoided, excluded)
    if whole is not None or integer or divisors:
        return whole
    return next((x for x in _between(bounds, len(excluded)) if all(literal.accepts(x) for literal in literals)), None)


def _fits(value: Number, minimum: Number, integer: bool) -> bool:
    return value >= minimum and (not integer or value == int(value))


def first_whole(
    low: int, high: Number, divisors: Iterable[int], avoided: Iterable[int], excluded: Collection[Number] = ()
) -> int | None:
    """The smallest whole number in ``[low, high]`` that every one of ``divisors`` divides and none of ``avoided``."""
    step = math.lcm(*divisors)
    if any(step % modulus == 0 for modulus in avoided):
        return None
    # What is avoided then leaves multiples of `step` (those that are 1 modulo everything else), infinitely
    # many, and never far apart: runs of numbers each with one of r given divisors are shorter than 2**r.
    value = -(-low // step) * step
    while value <= high:
        if value not in excluded and all(value % modulus for modulus in avoided):
            return value
        value += step
    return None


def _between(bounds: Bounds, excluded: int) -> Iterator[float]:
    """Fractions inside an interval that holds no acceptable whole number, many more than are excluded."""
    high = bounds.low + 1 if bounds.high == math.inf else bounds.high
    yield float(bounds.low)
    yield float(high)
    width = float(high) - float(bounds.low)
    for _ in range(excluded + 64):
        width /= 2
        yield bounds.low + width
