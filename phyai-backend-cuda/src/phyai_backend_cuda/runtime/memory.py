"""Tensors as kernels take them: rows, alignment, results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def output(like: torch.Tensor, out: torch.Tensor | None, *shape: int) -> torch.Tensor:
    """``out``, or a fresh contiguous tensor of ``like``'s dtype and of ``shape`` (``like``'s when none is given)."""
    if out is not None:
        return out
    return torch.empty(shape or like.shape, dtype=like.dtype, device=like.device)


def rows_of(x: torch.Tensor, last: int = 1) -> torch.Tensor:
    """``x`` as ``[M, …]`` with its ``last`` dimensions kept, the last of them without gaps.

    A view wherever the strides of ``x`` allow one, however far its rows lie apart; else a copy.
    """
    if x.dim() != last + 1:
        x = x.reshape(-1, *x.shape[-last:])
    return x if x.stride(-1) == 1 else x.contiguous()


def readable(x: torch.Tensor) -> torch.Tensor:
    """``x`` (16-bit), or a copy, whose rows 16-byte copies can read.

    >>> x = torch.zeros(4, 24, dtype=torch.bfloat16)
    >>> [readable(part) is part for part in (x, x[:, 8:], x[:, 1:], x.T)]
    [True, True, False, False]
    """
    fits = x.stride(-1) == 1 and not x.data_ptr() % 16 and not any(stride % 8 for stride in x.stride()[:-1])
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def described(x: torch.Tensor) -> torch.Tensor:
    """``x`` (16-bit), or a copy, as the copy engine can be told of it: :func:`readable`, no row over another.

    >>> x = torch.zeros(4, 1, 24, dtype=torch.bfloat16)
    >>> [described(part) is part for part in (x, x.transpose(0, 1), x.expand(4, 8, 24))]
    [True, True, False]
    """
    apart = all(stride >= x.shape[-1] for stride in x.stride()[:-1])
    return readable(x) if apart else x.clone(memory_format=torch.contiguous_format)


def placed(y: torch.Tensor, elements: int) -> torch.Tensor:
    """``y`` as ``[M, N]`` where ``elements`` of a row can be stored at once, else another tensor of that shape."""
    rows = y.reshape(-1, y.shape[-1])
    fits = rows.data_ptr() == y.data_ptr() and rows.stride(-1) == 1 and not rows.stride(0) % elements
    if fits and not rows.data_ptr() % (elements * rows.element_size()):
        return rows
    return torch.empty(rows.shape, dtype=y.dtype, device=y.device)


def gapless(y: torch.Tensor) -> torch.Tensor:
    """``y`` where it lies without gaps from a multiple of 16 bytes on, else another tensor of its shape."""
    fits = y.is_contiguous() and not y.data_ptr() % 16
    return y if fits else torch.empty(y.shape, dtype=y.dtype, device=y.device)


def settle(y: torch.Tensor, rows: torch.Tensor) -> None:
    """Bring what was written to ``rows`` to ``y``, where :func:`rows_of`, :func:`placed` or :func:`gapless` gave other
    memory."""
    if rows.data_ptr() != y.data_ptr():
        y.copy_(rows.view(y.shape))


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` without gaps, beginning at a multiple of 16 bytes."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def contiguous(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights as the kernels read them: those that were bound, unless they have gaps."""
    return {name: None if weight is None else weight.contiguous() for name, weight in weights.items()}
