"""Normalization of every position's channels by their Euclidean norm.

::

    x32 = x.float()                                        # fp64 stays fp64
    n = x32 / x32.norm(dim=1, keepdim=True).clamp_min(eps)
    y = (n * sqrt(C) * weight[c] + bias[c]).to(x.dtype)    # the bias where it is given

Source: ``WanRMS_norm`` of diffusers' WAN VAE (``F.normalize(x, dim=1) * sqrt(C) * gamma + bias``).
"""

from __future__ import annotations

from phyai.facts import FactKind
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops.channel_l2_norm.arg_specs import ARG_SPECS

OP = Op(
    name="channel_l2_norm",
    doc=__doc__ or "",
    tensors=(
        Tensor("x", ("B", "C", "...S")),
        Tensor("weight", ("C",), "weight", fill="near_one"),
        Tensor("bias", ("C",), "weight", optional=True),
        Tensor("y", ("B", "C", "...S"), "output"),
    ),
    dims=(
        Dim("B", "samples", dynamic=True, minimum=0),
        Dim("C", "channels"),
        Dim("S", "positions", dynamic=True, minimum=0),
    ),
    attributes=(Attr("eps", FactKind.NUMBER, 1e-12, "smallest norm that is divided by", minimum=0),),
    arg_specs=ARG_SPECS,
)
