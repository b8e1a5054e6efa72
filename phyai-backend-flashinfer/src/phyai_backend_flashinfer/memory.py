"""What FlashInfer's kernels ask of memory: they read and write 16 bytes at a time. What does not fit is copied, which
costs a pass over it; tensors as layers make them fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

ALIGNMENT = 16  # bytes


def fits(tensor: torch.Tensor) -> bool:
    """Whether every row of ``tensor`` lies in one piece, at an aligned address.

    >>> x = torch.zeros(4, 24)
    >>> fits(x), fits(x[:, 4:]), fits(x[:, 1:]), fits(x.T)
    (True, True, False, False)
    """
    size = tensor.element_size()
    strides = [stride for stride, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1]
    last = tensor.dim() == 0 or tensor.shape[-1] <= 1 or strides.pop() == 1
    return last and not any(at % ALIGNMENT for at in (tensor.data_ptr(), *(stride * size for stride in strides)))


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a copy that fits."""
    return tensor if fits(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a copy that fits and has no gaps."""
    return tensor if tensor.is_contiguous() and fits(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def place(
    out: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:  # fmt: skip
    """Where a kernel writes: ``out`` where that fits and has no gaps, else new memory."""
    if out is not None and out.is_contiguous() and fits(out):
        return out
    return torch.empty(*shape, dtype=dtype, device=device)


def target(out: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """The same for a result of ``like``'s shape and dtype."""
    return place(out, like.shape, like.dtype, like.device)


def give(y: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """The result of a call with this ``out``, after :func:`target` was written."""
    return y if out is None or y is out else out.copy_(y)


def held(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The bound weights, as the kernels can read them."""
    return {name: None if weight is None else packed(weight) for name, weight in weights.items()}
