"""What the Triton rows share: outputs, rows, launch widths, weights in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def output(like: torch.Tensor, out: torch.Tensor | None, *shape: int) -> torch.Tensor:
    """``out``, or a fresh contiguous tensor of ``like``'s dtype and of ``shape`` (``like``'s when none is given)."""
    if out is not None:
        return out
    return torch.empty(shape or like.shape, dtype=like.dtype, device=like.device)


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """``[..., D]`` as contiguous ``[M, D]``."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def warps(block: int) -> int:
    """Warps for a row of ``block`` elements: about eight elements a thread."""
    return max(1, min(16, block // 256))


def in_place(weights: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], None]:
    """A ``refresh`` that copies new weights into those that were bound."""

    def refresh(new: Mapping[str, Any]) -> None:
        for name, held in weights.items():
            if held is not None:
                held.copy_(new[name])

    return refresh
