"""A product that is gated and added to a residual.

::

    y = residual + gate * (x @ weight.T + bias)            # row m uses row m // (M // R) of the gate

Composite: of the ops ``gemm`` and ``gated_residual``. R divides M. A fused kernel may keep the product in higher
precision.

Source: the output projection of attention in π0.5's action expert (openpi's ``_gated_residual``); DiT blocks.
"""

from __future__ import annotations

from phyai.op import FLOATS, SUM_TOLERANCE, Dim, Op, Part, Tensor
from phyai.ops import contradictions, fits
from phyai.ops.ada_rms_norm.signature import ROWS
from phyai.ops.gemm.signature import CODES
from phyai.ops.gemm_gated_residual.arg_specs import ARG_SPECS

#: What adds a branch's result to the residual.
GATED_RESIDUAL = Part(
    "gated_residual", "gated_residual", dims={"D": "N"}, dtypes={"residual": "residual", "gate": "gate", "y": "y"}
)

OP = Op(
    name="gemm_gated_residual",
    doc=__doc__ or "",
    tensors=(
        Tensor("x", ("...M", "K"), doc="rows to multiply"),
        Tensor("residual", ("...M", "N")),
        Tensor("gate", ("...R", "N")),
        Tensor("weight", ("N", "K"), "weight", dtypes=(*FLOATS, *CODES), doc="one output per row"),
        Tensor("bias", ("N",), "weight", optional=True, doc="added to every row of the product"),
        Tensor("y", ("...M", "N"), "output"),
    ),
    dims=(
        Dim("M", "rows of x", dynamic=True, minimum=0),
        ROWS,
        Dim("N", "outputs per row"),
        Dim("K", "inputs per row"),
    ),
    tolerance=SUM_TOLERANCE,  # the product may be rounded before it is added to a residual that may cancel it
    parts=(
        Part("gemm", "gemm", weights={"weight": "weight", "bias": "bias"}, layer=""),
        GATED_RESIDUAL,
    ),
    compose="phyai.ops.gemm_gated_residual.decompose:compose",
    arg_specs=ARG_SPECS,
    fit=fits.condition_rows,
    contradiction=contradictions.condition_rows,
)  # fmt: skip
