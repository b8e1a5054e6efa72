"""Looking at the values of a request without keeping a GPU waiting."""

from __future__ import annotations

from collections.abc import Callable

import torch

Judge = Callable[[float, float], None]


class Checks:
    """Judgements on the smallest and the largest value of tensors.

    On a CPU each is made at once, before anything is computed. A GPU waits for no judgement: it computes from wrong
    values what nobody will see, and :meth:`make` makes them all meanwhile, before an answer is given out.

    >>> def judge(low, high):
    ...     if not high <= 1:
    ...         raise ValueError(high)
    >>> Checks(torch.device("cpu")).bounds(torch.tensor([0.0, 2.0]), judge)
    Traceback (most recent call last):
    ValueError: 2.0
    """

    def __init__(self, device: torch.device) -> None:
        self._meanwhile = device.type == "cuda"
        self._waiting: list[Callable[[], None]] = []

    def bounds(self, values: torch.Tensor, judge: Judge) -> None:
        """Have ``judge(smallest, largest)`` called, which raises what is to be raised. Both are NaN where one of the
        ``values`` is. They must not change until then; nothing is judged where there are none."""
        if values.numel() == 0:
            return
        if values.device.type != "cpu":
            found = _on_its_way(values)
        elif values.dtype in (torch.float32, torch.float64):
            found = _on_the_host(values)
        else:
            found = _on_the_host(values.to(torch.float32))
        self._waiting.append(lambda: judge(*found()))
        if not self._meanwhile:
            self.make()

    def make(self) -> None:
        """Judge what was not judged yet, in the order in which it came."""
        waiting, self._waiting = self._waiting, []
        for check in waiting:
            check()


def _on_the_host(values: torch.Tensor) -> Callable[[], tuple[float, float]]:
    def found() -> tuple[float, float]:
        low, high = torch.aminmax(values)
        return low.item(), high.item()

    return found


def _on_its_way(values: torch.Tensor) -> Callable[[], tuple[float, float]]:
    """The bounds are computed where the values lie, and arrive before what the device is given after this."""
    bounds = torch.stack(torch.aminmax(values.to(torch.float32))).to("cpu", non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(values.device))

    def found() -> tuple[float, float]:
        arrived.synchronize()
        low, high = bounds.tolist()
        return low, high

    return found
