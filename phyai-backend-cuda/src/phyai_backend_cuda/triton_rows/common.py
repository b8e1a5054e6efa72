"""What the Triton rows share: launches that overlap, and how wide a program is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def warps(block: int) -> int:
    """Warps for a row of ``block`` elements: about eight elements a thread."""
    return max(1, min(16, block // 256))
