"""Inputs whose sums are exact in half precision.

Where a row is nearly constant, the rounding of its sums decides what their normalization gives: no bound on the result
would then hold for a kernel that normalizes the rounded sums and for one that normalizes those before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyai.synthesize import SynthesizedCall


def fill(call: SynthesizedCall, generator: Any) -> None:
    """Make ``x`` and ``residual`` multiples of 1/16 up to 4: a sum has 8 bits."""
    for name in ("x", "residual"):
        call.inputs[name] = (call.inputs[name] * 16).round().clamp(-64, 64) / 16
