"""What the Triton rows share: outputs, rows, launch widths, weights in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from phyai.facts import Facts
from triton.language.extra.cuda import gdc_wait


@triton.jit
def wait_previous(OVERLAP: tl.constexpr):  # noqa: ANN201 - Triton's
    """Before a program reads or writes anything: in launches that overlap, wait until the kernel in front has ended."""
    if OVERLAP:
        gdc_wait()


def overlapping(facts: Facts, params: Mapping[str, Any]) -> dict[str, bool]:
    """Options of a launch whose programs may be set up before the kernel in front has ended, where ``params`` say so.

    What such a launch runs begins with :func:`wait_previous`: only the launch itself overlaps.

    Raises:
        ValueError: the device is older than Hopper, which was the first to have such launches.
    """
    if not params.get("overlap"):
        return {}
    arch = str(facts.get("device.arch", "sm90"))
    if int(arch.removeprefix("sm").rstrip("abcdefghijklmnopqrstuvwxyz")) < 90:
        raise ValueError(f"overlap=true needs sm90 or later, and the device is {arch}; leave overlap out")
    return {"launch_pdl": True}


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


def settle(y: torch.Tensor, rows: torch.Tensor) -> None:
    """Bring what was written to ``rows`` to ``y``, where :func:`rows_of` had to copy it."""
    if rows.data_ptr() != y.data_ptr():
        y.copy_(rows.view(y.shape))


def warps(block: int) -> int:
    """Warps for a row of ``block`` elements: about eight elements a thread."""
    return max(1, min(16, block // 256))


def contiguous(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights as the kernels read them: those that were bound, unless they have gaps."""
    return {name: None if weight is None else weight.contiguous() for name, weight in weights.items()}


def in_place(weights: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], None]:
    """A ``refresh`` that copies new weights into ``weights``."""

    def refresh(new: Mapping[str, Any]) -> None:
        for name, held in weights.items():
            if held is not None:
                held.copy_(new[name])

    return refresh
