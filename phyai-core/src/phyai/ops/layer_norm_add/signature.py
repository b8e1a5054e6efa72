"""Residual addition and layer normalization in one.

::

    residual += x                                          # the sum is rounded to the residual's dtype
    y = layer_norm(residual, weight, bias, eps)

``residual`` is mutated. Composite: of the op ``layer_norm``, behind the addition. Whether the norm reads the sum before
or after its rounding is left to the kernel.
"""

from __future__ import annotations

from phyai.op import Dim, Op, Part, Tensor
from phyai.ops.layer_norm.signature import EPS
from phyai.ops.layer_norm_add.arg_specs import ARG_SPECS

OP = Op(
    name="layer_norm_add",
    doc=__doc__ or "",
    aliases=("layernorm_add", "add_layer_norm"),
    tensors=(
        Tensor("x", ("...M", "D")),
        Tensor("residual", ("...M", "D"), mutated=True, doc="becomes residual + x"),
        Tensor("weight", ("D",), "weight", optional=True, fill="near_one"),
        Tensor("bias", ("D",), "weight", optional=True),
        Tensor("y", ("...M", "D"), "output"),
    ),
    dims=(Dim("M", "rows", dynamic=True, minimum=0), Dim("D", "size that is normalized over")),
    attributes=(EPS,),
    parts=(
        Part(
            "norm", "layer_norm", weights={"weight": "weight", "bias": "bias"}, attrs={"eps": "eps"},
            dtypes={"x": "residual", "y": "y"},
        ),
    ),
    compose="phyai.ops.layer_norm_add.decompose:compose",
    arg_specs=ARG_SPECS,
    synthesize="phyai.ops.layer_norm_add.inputs:fill",
)  # fmt: skip
