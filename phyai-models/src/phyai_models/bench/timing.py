"""Timing on the device that the work runs on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import attrs
import torch


@attrs.frozen
class Timing:
    """Milliseconds: the median, the 90th and 99th percentile, the shortest, of ``runs``."""

    p50: float
    p90: float
    p99: float
    least: float
    runs: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """
        >>> Timing.of([0.001, 0.002, 0.003]).p50
        2.0
        """
        ordered = sorted(s * 1e3 for s in seconds)

        def percentile(p: float) -> float:
            at = p * (len(ordered) - 1)
            low = int(at)
            high = min(low + 1, len(ordered) - 1)
            return ordered[low] + (ordered[high] - ordered[low]) * (at - low)

        return cls(percentile(0.5), percentile(0.9), percentile(0.99), ordered[0], len(ordered))


def time_device(work: Callable[[], object], device: torch.device, *, warmup: int, runs: int) -> Timing:
    """How long ``work`` keeps the device busy: between two events on a GPU, by the clock on a CPU."""
    for _ in range(warmup):
        work()
    if device.type != "cuda":
        return time_wall(work, device, warmup=0, runs=runs)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]  # type: ignore[no-untyped-call]
    for begin, end in events:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize(device)
    return Timing.of([begin.elapsed_time(end) / 1e3 for begin, end in events])


def time_wall(work: Callable[[], object], device: torch.device, *, warmup: int, runs: int) -> Timing:
    """How long a caller waits for ``work`` and for the device to finish it."""
    seconds = []
    for run in range(warmup + runs):
        _wait(device)
        begin = time.perf_counter()
        work()
        _wait(device)
        if run >= warmup:
            seconds.append(time.perf_counter() - begin)
    return Timing.of(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
