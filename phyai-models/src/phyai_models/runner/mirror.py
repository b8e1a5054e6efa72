"""Small tensors that are filled on the host and go to the device in one copy."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

ALIGNMENT = 256  # bytes; what CUDA allocates at, and more than any kernel asks for


class Mirror:
    """Tensors of one dtype by name, on the host (:attr:`host`) and on the device (:attr:`device`), where they stay
    in place. On a CPU both are the same memory.

    >>> mirror = Mirror({"a": (2, 3), "b": (4,)}, torch.int64, torch.device("cpu"))
    >>> mirror.host["b"].fill_(7).tolist(), mirror.upload(), mirror.device["b"].tolist()
    ([7, 7, 7, 7], None, [7, 7, 7, 7])
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device) -> None:
        step = ALIGNMENT // dtype.itemsize
        starts, total = {}, 0
        for name, shape in shapes.items():
            starts[name] = total
            total += -(-math.prod(shape) // step) * step
        on_device = device.type != "cpu"
        self._host = torch.zeros(total, dtype=dtype, pin_memory=on_device)
        self._device = torch.zeros(total, dtype=dtype, device=device) if on_device else self._host

        def views(flat: torch.Tensor) -> dict[str, torch.Tensor]:
            return {name: flat[at : at + math.prod(shapes[name])].view(shapes[name]) for name, at in starts.items()}

        self.host, self.device = views(self._host), views(self._device)

    def upload(self) -> None:
        """Copy everything to the device, in order with the current stream and without waiting for it."""
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=True)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._device.nbytes
