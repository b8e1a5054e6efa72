"""Timing one prepared call: a clock and a way to repeat. Injected, so that measuring is tested without a GPU.

A *sample* is the time of one call, averaged over as many as the clock needs. Calls rotate over several sets of tensors,
together larger than the cache, so that each finds its weights in memory as it does inside a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs

Call = Callable[[], Any]
#: Takes one sample: seconds per call.
Sampler = Callable[[], float]


class Timer(Protocol):
    """How candidates are timed on one kind of device."""

    @property
    def method(self) -> str:
        """One of :data:`phyai.tune.record.METHODS`."""

    def sets(self, nbytes: int) -> int:
        """How many sets of tensors calls should rotate over, where one set has ``nbytes``."""

    def load(self, calls: Sequence[Call]) -> Sampler:
        """Make ready to time a candidate, whose calls on each set of tensors these are; they have run once.

        Raises:
            Exception: the candidate cannot be timed so (it cannot be captured, it fails).
        """


@attrs.frozen
class CpuTimer:
    """The monotonic clock. A sample lasts at least ``shortest`` seconds, unless one call does.

    >>> ticks = iter(range(100))
    >>> timer = CpuTimer(clock=lambda: float(next(ticks)), shortest=0.0)
    >>> timer.load([lambda: None])()
    1.0
    """

    clock: Callable[[], float] = time.perf_counter
    shortest: float = 2e-3
    cache_bytes: int = 32 << 20
    max_sets: int = 8
    method: str = attrs.field(init=False, default="cpu")

    def sets(self, nbytes: int) -> int:
        return rotations(nbytes, 2 * self.cache_bytes, self.max_sets)

    def load(self, calls: Sequence[Call]) -> Sampler:
        start = self.clock()
        calls[0]()
        once = self.clock() - start
        repeats = 1 if once >= self.shortest else min(1 + int(self.shortest / max(once, 1e-7)), 20_000)
        turn = 0

        def sample() -> float:
            nonlocal turn
            upcoming = [calls[(turn + i) % len(calls)] for i in range(repeats)]
            turn += repeats
            start = self.clock()
            for call in upcoming:
                call()
            return (self.clock() - start) / repeats

        return sample


def rotations(nbytes: int, span: int, most: int) -> int:
    """How many sets of ``nbytes`` cover ``span`` bytes; at most ``most``, at least one.

    >>> rotations(8 << 20, 64 << 20, 16), rotations(1 << 10, 64 << 20, 16), rotations(1 << 30, 64 << 20, 16)
    (8, 16, 1)
    """
    return max(1, min(most, -(-span // max(nbytes, 1))))
