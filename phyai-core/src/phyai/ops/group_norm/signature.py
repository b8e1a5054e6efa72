"""Group normalization of channels-first tensors.

::

    g = x.float().reshape(B, groups, -1)                   # C / groups channels and all positions; fp64 stays fp64
    centred = g - g.mean(-1, keepdim=True)
    n = centred * rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps)
    y = (n.reshape(x.shape) * weight[c] + bias[c]).to(x.dtype)    # each of the two where it is given

Source: Wu & He 2018; ``torch.nn.functional.group_norm``.
"""

from __future__ import annotations

from phyai.facts import FactKind
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops import contradictions, fits
from phyai.ops.group_norm.arg_specs import ARG_SPECS

OP = Op(
    name="group_norm",
    doc=__doc__ or "",
    aliases=("groupnorm",),
    tensors=(
        Tensor("x", ("B", "C", "...S")),
        Tensor("weight", ("C",), "weight", optional=True, fill="near_one"),
        Tensor("bias", ("C",), "weight", optional=True),
        Tensor("y", ("B", "C", "...S"), "output"),
    ),
    dims=(
        Dim("B", "samples", dynamic=True, minimum=0),
        Dim("C", "channels: a multiple of groups"),
        Dim("S", "positions", dynamic=True),
    ),
    attributes=(
        Attr("groups", FactKind.NUMBER, 1, "groups of channels", whole=True, minimum=1),
        Attr("eps", FactKind.NUMBER, 1e-5, "added to the variance", minimum=0),
    ),
    arg_specs=ARG_SPECS,
    fit=fits.group_norm,
    contradiction=contradictions.group_norm,
)
