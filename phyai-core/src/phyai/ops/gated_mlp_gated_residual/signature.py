"""A transformer's gated feed-forward block that is gated and added to a residual.

::

    y = residual + gate * gated_mlp(x, gate_up, down, activation)  # row m uses row m // (M // R) of the gate

Composite: of the ops ``gated_mlp``, itself composite, and ``gated_residual``. R divides M. A fused kernel may keep what
lies between in higher precision.

Source: the feed-forward blocks of π0.5's action expert (openpi's ``_gated_residual``); DiT blocks.
"""

from __future__ import annotations

from phyai.op import FLOATS, Op, Part, Tensor
from phyai.ops import contradictions, fits, gated_mlp
from phyai.ops.activation.signature import ACTIVATION
from phyai.ops.ada_rms_norm.signature import ROWS
from phyai.ops.feed_forward import DIMS, TOLERANCE
from phyai.ops.gated_mlp_gated_residual.arg_specs import ARG_SPECS
from phyai.ops.gemm.signature import CODES
from phyai.ops.gemm_gated_residual.signature import GATED_RESIDUAL

OP = Op(
    name="gated_mlp_gated_residual",
    doc=__doc__ or "",
    tensors=(
        Tensor("x", ("...M", "K")),
        Tensor("residual", ("...M", "N")),
        Tensor("gate", ("...R", "N")),
        Tensor("gate_up", ("2*I", "K"), "weight", dtypes=(*FLOATS, *CODES), doc="the gate's rows, then the up rows"),
        Tensor("down", ("N", "I"), "weight", dtypes=(*FLOATS, *CODES)),
        Tensor("y", ("...M", "N"), "output"),
    ),
    dims=(*DIMS, ROWS),
    attributes=(ACTIVATION,),
    tolerance=TOLERANCE,
    parts=(
        Part(
            "gated_mlp", "gated_mlp", weights={"gate_up": "gate_up", "down": "down"},
            attrs={"activation": "activation"}, parts=gated_mlp.OP.parts, layer="",
        ),
        GATED_RESIDUAL,
    ),
    compose="phyai.ops.gemm_gated_residual.decompose:compose",
    arg_specs=ARG_SPECS,
    fit=fits.condition_rows,
    contradiction=contradictions.condition_rows,
)  # fmt: skip
