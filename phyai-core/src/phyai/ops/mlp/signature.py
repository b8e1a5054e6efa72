"""A transformer's feed-forward block.

::

    y = activation(x @ fc1.T + fc1_bias) @ fc2.T + fc2_bias        # each bias where it is given

Composite: of the ops ``gemm``, ``activation`` and ``gemm``. A fused kernel may keep what lies between in higher
precision.

Source: Vaswani et al. 2017; SigLIP's MLP.
"""

from __future__ import annotations

from phyai.op import FLOATS, Op, Part, Tensor
from phyai.ops.activation.signature import ACTIVATION
from phyai.ops.feed_forward import DIMS, TOLERANCE
from phyai.ops.gemm.signature import CODES
from phyai.ops.mlp.arg_specs import ARG_SPECS

OP = Op(
    name="mlp",
    doc=__doc__ or "",
    aliases=("feed_forward",),
    tensors=(
        Tensor("x", ("...M", "K")),
        Tensor("fc1", ("I", "K"), "weight", dtypes=(*FLOATS, *CODES)),
        Tensor("fc1_bias", ("I",), "weight", optional=True),
        Tensor("fc2", ("N", "I"), "weight", dtypes=(*FLOATS, *CODES)),
        Tensor("fc2_bias", ("N",), "weight", optional=True),
        Tensor("y", ("...M", "N"), "output"),
    ),
    dims=DIMS,
    attributes=(ACTIVATION,),
    tolerance=TOLERANCE,
    parts=(
        Part("fc1", "gemm", weights={"weight": "fc1", "bias": "fc1_bias"}, dims={"N": "I"}),
        Part("activation", "activation", attrs={"activation": "activation"}, dims={"D": "I"}),
        Part("fc2", "gemm", weights={"weight": "fc2", "bias": "fc2_bias"}, dims={"K": "I"}, dtypes={"y": "y"}),
    ),
    compose="phyai.ops.feed_forward:compose",
    arg_specs=ARG_SPECS,
)
