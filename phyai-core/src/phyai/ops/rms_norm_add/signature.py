"""Residual addition and root-mean-square normalization in one.

::

    residual += x                                          # the sum is rounded to the residual's dtype
    y = rms_norm(residual, weight, eps, offset)            # with the op ``rms_norm``'s mathematics

``residual`` is mutated. Whether the norm reads the sum before or after its rounding is left to the kernel.
"""

from __future__ import annotations

from phyai.op import Dim, Op, Tensor
from phyai.ops.rms_norm.signature import EPS, OFFSET
from phyai.ops.rms_norm_add.arg_specs import ARG_SPECS

OP = Op(
    name="rms_norm_add",
    doc=__doc__ or "",
    aliases=("rmsnorm_add", "add_rms_norm", "fused_add_rms_norm"),
    tensors=(
        Tensor("x", ("...M", "D")),
        Tensor("residual", ("...M", "D"), mutated=True, doc="becomes residual + x"),
        Tensor("weight", ("D",), "weight", fill="near_one"),
        Tensor("y", ("...M", "D"), "output"),
    ),
    dims=(Dim("M", "rows", dynamic=True, minimum=0), Dim("D", "size that is normalized over")),
    attributes=(EPS, OFFSET),
    arg_specs=ARG_SPECS,
)
