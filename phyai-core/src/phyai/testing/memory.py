"""Tensors with the same values in other places: strided, offset into their storage, poisoned, and fenced.

Every tensor made here lies inside a larger storage whose other bytes have a known value, so that a write outside
the tensor is seen. Poison is a NaN that no arithmetic makes for floats, and bytes of 0x7f for everything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    import torch

_POISON, _POISONED_FLOAT = 0x7F, 0xFF
#: Elements before and after a tensor: keeps it aligned to 256 bytes, unless an offset is asked for.
_FENCE = 256


@attrs.frozen(eq=False)
class Placed:
    """A tensor, and the flat storage in which it lies; ``inside`` marks the storage's elements that belong to it."""

    tensor: torch.Tensor
    storage: torch.Tensor
    inside: torch.Tensor

    def poison(self) -> None:
        """Fill all of the storage."""
        poison(self.storage)

    def overrun(self) -> bool:
        """Whether something wrote outside the tensor since it was poisoned."""
        import torch

        outside = _bytes(self.storage)[~self.inside]
        clean = torch.empty_like(self.storage[:1])
        poison(clean)
        return bool((outside != _bytes(clean)[0]).any())


def place(shape: Sequence[int], dtype: torch.dtype, device: Any, memory: str) -> Placed:
    """A poisoned tensor of ``shape`` in the given form (see :data:`phyai.testing.case.MEMORY`)."""
    import torch

    strides, extent, offset = _strides(tuple(shape), memory)
    start = _FENCE + offset
    storage = torch.empty(start + extent + _FENCE, dtype=dtype, device=device)
    tensor = storage.as_strided(tuple(shape), strides, start)
    inside = torch.zeros(storage.numel(), dtype=torch.bool, device=device)
    inside.as_strided(tuple(shape), strides, start).fill_(True)
    placed = Placed(tensor, storage, inside)
    placed.poison()
    return placed


def move(tensor: torch.Tensor, memory: str) -> torch.Tensor:
    """The same values in another form, among NaNs."""
    placed = place(tuple(tensor.shape), tensor.dtype, tensor.device, memory)
    if tensor.is_floating_point() and tensor.element_size() > 1:
        placed.storage.fill_(math.nan)  # another one than in poisoned outputs: what reads it writes something else
    placed.tensor.copy_(tensor)
    return placed.tensor


def poison(tensor: torch.Tensor) -> None:
    """Overwrite a contiguous tensor with values that no kernel means."""
    import torch

    if tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.view(torch.uint8).fill_(_POISONED_FLOAT if tensor.is_floating_point() else _POISON)


def unwritten(tensor: torch.Tensor) -> torch.Tensor:
    """Which elements still hold the poison, bit for bit."""
    import torch

    clean = torch.empty((1,), dtype=tensor.dtype, device=tensor.device)
    poison(clean)
    return (_bytes(tensor) == _bytes(clean)).all(dim=-1).reshape(tensor.shape)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bytes."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool((_bytes(one) == _bytes(other)).all())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """``[elements, bytes]``, in the order of the indices."""
    import torch

    flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    flat.copy_(tensor.reshape(-1))
    return flat.view(torch.uint8).reshape(tensor.numel(), tensor.element_size())


def _strides(shape: tuple[int, ...], memory: str) -> tuple[tuple[int, ...], int, int]:
    """Strides, how many elements they span, and the offset of the first."""
    order = list(range(len(shape)))
    step, gap, offset = 1, 0, 0
    if memory == "offset":
        offset = 1
    elif memory == "rows":
        gap = 3
    elif memory == "strided":
        step = 2
    elif memory == "transposed" and len(shape) > 1:
        order[-1], order[-2] = order[-2], order[-1]
    strides = [0] * len(shape)
    span = step
    for position, axis in enumerate(reversed(order)):
        strides[axis] = span
        span *= max(shape[axis], 1)
        if position == 0:
            span += gap
    return tuple(strides), span + gap, offset
