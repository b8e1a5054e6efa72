"""Depthwise causal convolution over time, with the last inputs carried from call to call.

::

    past = conv_state if conv_state is not None else zeros(B, C, K - 1)
    full = cat(past, x)                                    # [B, C, K - 1 + T]
    y[b, c, t] = activation(bias[c] + sum(weight[c, i] * full[b, c, t + i] for i in range(K)))
    if conv_state is not None: conv_state[:] = full[..., T:]         # the last K - 1 inputs

in fp32 (fp64 for fp64), rounded once. ``conv_state`` is mutated.

Source: the short convolution of Mamba and of gated delta networks (``causal_conv1d``).
"""

from __future__ import annotations

from phyai.facts import FactKind
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops.causal_conv.arg_specs import ARG_SPECS

OP = Op(
    name="causal_conv",
    doc=__doc__ or "",
    aliases=("causal_conv1d",),
    tensors=(
        Tensor("x", ("B", "C", "T")),
        Tensor(
            "conv_state", ("B", "C", "K-1"), optional=True, mutated=True, doc="the K - 1 inputs before x, oldest first"
        ),
        Tensor("weight", ("C", "K"), "weight"),
        Tensor("bias", ("C",), "weight", optional=True),
        Tensor("y", ("B", "C", "T"), "output"),
    ),
    dims=(
        Dim("B", "sequences", dynamic=True, minimum=0),
        Dim("C", "channels"),
        Dim("T", "steps", dynamic=True, minimum=0),
        Dim("K", "kernel length"),
    ),
    attributes=(Attr("activation", FactKind.NAME, None, "applied to the result", values=("silu",)),),
    arg_specs=ARG_SPECS,
)
