"""A transformer's gated feed-forward block.

::

    y = gated_activation(x @ gate_up.T, activation) @ down.T       # the gate's rows of gate_up first

Composite: of the ops ``gemm``, ``gated_activation`` and ``gemm``. A fused kernel may keep what lies between in higher
precision.

Source: Shazeer 2020; Gemma's and Llama's MLP.
"""

from __future__ import annotations

from phyai.op import FLOATS, Op, Part, Tensor
from phyai.ops.activation.signature import ACTIVATION
from phyai.ops.feed_forward import DIMS, TOLERANCE
from phyai.ops.gated_mlp.arg_specs import ARG_SPECS
from phyai.ops.gemm.signature import CODES

OP = Op(
    name="gated_mlp",
    doc=__doc__ or "",
    tensors=(
        Tensor("x", ("...M", "K")),
        Tensor("gate_up", ("2*I", "K"), "weight", dtypes=(*FLOATS, *CODES), doc="the gate's rows, then the up rows"),
        Tensor("down", ("N", "I"), "weight", dtypes=(*FLOATS, *CODES)),
        Tensor("y", ("...M", "N"), "output"),
    ),
    dims=DIMS,
    attributes=(ACTIVATION,),
    tolerance=TOLERANCE,
    parts=(
        Part("gate_up", "gemm", weights={"weight": "gate_up"}, dims={"N": lambda d: 2 * d["I"]}),
        Part("activation", "gated_activation", attrs={"activation": "activation"}),
        Part("down", "gemm", weights={"weight": "down"}, dims={"K": "I"}, dtypes={"y": "y"}),
    ),
    compose="phyai.ops.feed_forward:compose",
    arg_specs=ARG_SPECS,
)
