"""Small tensors that are filled on the host and go to the device in one copy."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

ALIGNMENT = 256  # bytes; what CUDA allocates at, and more than any kernel asks for


class Mirror:
    """Tensors by name, each given by its dtype and its shape, on the host (:attr:`host`) and on the device
    (:attr:`device`), where they stay in place, one behind the other in one piece of memory. On a CPU both are the same
    memory.

    >>> mirror = Mirror({"a": (torch.int64, 2, 3), "b": (torch.float32, 4)}, torch.device("cpu"))
    >>> mirror.host["a"].fill_(7).shape, mirror.upload(), mirror.device["a"].tolist()
    (torch.Size([2, 3]), None, [[7, 7, 7], [7, 7, 7]])
    """

    def __init__(self, fields: Mapping[str, tuple[torch.dtype, *tuple[int, ...]]], device: torch.device) -> None:
        spans, total = {}, 0
        for name, (dtype, *shape) in fields.items():
            spans[name] = (total, total + math.prod(shape) * dtype.itemsize)
            total = -(-spans[name][1] // ALIGNMENT) * ALIGNMENT
        on_device = device.type != "cpu"
        self._host = torch.zeros(total, dtype=torch.uint8, pin_memory=on_device)
        self._device = torch.zeros(total, dtype=torch.uint8, device=device) if on_device else self._host
        self._upto = {name: (self._host[:end], self._device[:end]) for name, (_, end) in spans.items()}

        def views(flat: torch.Tensor) -> dict[str, torch.Tensor]:
            return {name: flat[slice(*spans[name])].view(dtype).view(shape) for name, (dtype, *shape) in fields.items()}

        self.host, self.device = views(self._host), views(self._device)

    def upload(self, last: str | None = None) -> None:
        """Copy everything to the device, or the tensors up to ``last``, in order with the current stream and without
        waiting for it."""
        host, device = (self._host, self._device) if last is None else self._upto[last]
        if self._device is not self._host:
            device.copy_(host, non_blocking=True)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._device.nbytes
