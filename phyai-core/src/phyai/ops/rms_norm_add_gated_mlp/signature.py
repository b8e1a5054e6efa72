"""A residual norm and the gated feed-forward block behind it.

::

    residual += x
    y = gated_mlp(rms_norm(residual, norm_weight, eps, offset), gate_up, down, activation)

Composite: of the ops ``rms_norm_add`` and ``gated_mlp``, which is composite too. ``residual`` is mutated. In which
form the norm's result reaches the block, in 16 bits or quantized for its first product, is left to the kernel.
"""

from __future__ import annotations

from phyai.op import Op, Tensor
from phyai.ops import gated_mlp
from phyai.ops.residual_norm import ATTRIBUTES, NORM_WEIGHT, parts_of
from phyai.ops.rms_norm_add_gated_mlp.arg_specs import ARG_SPECS

BLOCK = gated_mlp.OP

OP = Op(
    name="rms_norm_add_gated_mlp",
    doc=__doc__ or "",
    tensors=(
        *BLOCK.inputs,
        Tensor("residual", ("...M", "K"), mutated=True, doc="becomes residual + x"),
        NORM_WEIGHT,
        *BLOCK.weights,
        *BLOCK.outputs,
    ),
    dims=BLOCK.dims,
    attributes=(*ATTRIBUTES, *BLOCK.attributes),
    tolerance=BLOCK.tolerance,
    parts=parts_of(BLOCK, "M"),
    compose="phyai.ops.residual_norm:compose",
    arg_specs=ARG_SPECS,
)
