"""The counters through which the blocks of a Stream-K product wait for each other.

A kernel leaves them at zero, so that kernels of one stream can share them one after the other; two that run at the
same time cannot. Each stream has its own. They are allocated beforehand, because nothing can be while a CUDA graph is
captured. Graphs captured on one stream share its counters: replay them one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from phyai.errors import CaptureError

SIZE = 2048
_STREAMS = 16


class Locks:
    """Counters for every stream of one device."""

    def __init__(
        self, device: torch.device, *, capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
    ) -> None:
        self._device = device
        self._capturing = capturing
        self._by_stream: dict[int, torch.Tensor] = {}
        self._free: list[torch.Tensor] = []
        self._guard = threading.Lock()
        self._allocate()

    def of(self, stream: int) -> torch.Tensor:
        """int32 zeros that belong to the stream with this handle.

        Raises:
            CaptureError: a new stream is met during a capture, and there are none left.
        """
        found = self._by_stream.get(stream)
        return found if found is not None else self._assign(stream)

    def _assign(self, stream: int) -> torch.Tensor:
        with self._guard:
            if not self._free:
                if self._capturing():
                    raise CaptureError(
                        f"a Humming kernel is captured on its {len(self._by_stream) + 1}th stream; "
                        "run it once on that stream before the capture"
                    )
                self._allocate()
            return self._by_stream.setdefault(stream, self._free.pop())

    def _allocate(self) -> None:
        self._free += torch.zeros(_STREAMS, SIZE, dtype=torch.int32, device=self._device).unbind()
