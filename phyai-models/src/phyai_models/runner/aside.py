"""Work beside other work: what is needed later only is made ready on a stream of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


class Aside:
    """A second stream of a GPU. :meth:`fork`, then give the first stream its work; what is given within :meth:`beside`
    runs at the same time, behind everything that came before the fork, and the first stream waits for it at the end.
    On a CPU all of it runs in the order in which it is given.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._forked = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def fork(self) -> None:
        """The second stream goes on from here."""
        if self._forked is not None:
            self._forked.record()

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Within it, the second stream is the current one."""
        if self._stream is None or self._forked is None:
            yield
            return
        first = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_event(self._forked)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            first.wait_stream(self._stream)
