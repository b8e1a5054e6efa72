"""Adaptive root-mean-square normalization: scale, shift and gate come from a condition.

::

    scale, shift, gate = modulation.chunk(3, dim=-1)       # row m of x uses row m // (M // R) of the modulation
    x32 = x.float()                                        # fp64 stays fp64
    n = x32 * rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    y = (n * (1 + scale.float()) + shift.float()).to(x.dtype)
    gate = gate.to(x.dtype)                                # returned as it is, for the residual that follows

R divides M: one row of modulation for the whole call, one per request, or one per row of x.

Source: π0.5's action expert (openpi, ``gemma.py``; lerobot's ``PiGemmaRMSNorm``).
"""

from __future__ import annotations

from phyai.op import Dim, Op, Tensor
from phyai.ops import contradictions, fits
from phyai.ops.ada_rms_norm.arg_specs import ARG_SPECS
from phyai.ops.rms_norm.signature import EPS

ROWS = Dim("R", "rows of the condition: divides M", dynamic=True, minimum=0)

OP = Op(
    name="ada_rms_norm",
    doc=__doc__ or "",
    aliases=("adarmsnorm", "ada_rmsnorm"),
    tensors=(
        Tensor("x", ("...M", "D")),
        Tensor("modulation", ("...R", "3*D"), doc="scale, shift and gate, one after another"),
        Tensor("y", ("...M", "D"), "output"),
        Tensor("gate", ("...R", "D"), "output"),
    ),
    dims=(Dim("M", "rows", dynamic=True, minimum=0), ROWS, Dim("D", "size that is normalized over")),
    attributes=(EPS,),
    arg_specs=ARG_SPECS,
    fit=fits.condition_rows,
    contradiction=contradictions.condition_rows,
)
