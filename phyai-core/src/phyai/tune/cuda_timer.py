"""Timing on a CUDA device: by graph replay, as captured models run, or eagerly, as uncaptured ones do.

Each call finds the L2 cache cold. Calls rotate over sets of tensors that together exceed twice the cache; where small
tensors would need too many sets, a write to a buffer of that size goes before every call, and the time of those writes
alone, measured right before, is taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from phyai.tune.timers import Call, Sampler, rotations

if TYPE_CHECKING:
    import torch

#: Assumed where the device does not tell its size.
_L2_BYTES = 64 << 20


@attrs.define(eq=False)
class CudaTimer:
    """``graph``: replay captured graphs; else enqueue calls one by one. ``unrolled`` calls make up a sample.

    Raises:
        RuntimeError: from torch, where there is no such device.
    """

    device: str = "cuda:0"
    graph: bool = True
    unrolled: int = 16
    max_sets: int = 16
    _scrub: Any = None

    @property
    def method(self) -> str:
        return "graph" if self.graph else "eager"

    @property
    def cold_bytes(self) -> int:
        """Twice the L2 cache."""
        import torch

        return 2 * (getattr(torch.cuda.get_device_properties(self.device), "L2_cache_size", 0) or _L2_BYTES)

    def sets(self, nbytes: int) -> int:
        return rotations(nbytes, self.cold_bytes, self.max_sets)

    def load(self, calls: Sequence[Call]) -> Sampler:
        """See :class:`phyai.tune.timers.Timer`. A fault of a kernel surfaces here or in the first sample."""
        import torch

        turns = [calls[i % len(calls)] for i in range(max(self.unrolled, len(calls)))]
        scrub = self._scrubber() if len(calls) == self.max_sets else None
        body = [step for call in turns for step in ((scrub, call) if scrub is not None else (call,))]
        with torch.cuda.device(self.device):
            run = self._launcher(body)
            alone = self._launcher([scrub] * len(turns)) if scrub is not None else None
            torch.cuda.synchronize()

        def sample() -> float:
            with torch.cuda.device(self.device):
                off = _elapsed(alone) if alone is not None else 0.0
                return (_elapsed(run) - off) / len(turns)

        return sample

    def _launcher(self, steps: Sequence[Call]) -> Call:
        """A function that enqueues all steps: a graph's replay, or a loop."""
        import torch

        def loop() -> None:
            for step in steps:
                step()

        if not self.graph:
            return loop
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loop()  # lazily loaded modules and allocations come before the capture
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loop()
        return graph.replay

    def _scrubber(self) -> Call:
        import torch

        if self._scrub is None:
            self._scrub = torch.empty(self.cold_bytes, dtype=torch.uint8, device=self.device)
        buffer: torch.Tensor = self._scrub
        return buffer.zero_


def _elapsed(run: Call) -> float:
    """Seconds of device time that ``run`` takes, by events around it."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
