"""Root-mean-square normalization over the last dimension.

::

    x32 = x.float()                                                    # fp64 stays fp64
    y = x32 * rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps) * (offset + weight.float())
    y = y.to(x.dtype)                                                  # rounded once, at the end

Without a weight the last factor is left out. ``offset`` is 1 for Gemma's ``1 + w`` form.

Sources: Zhang & Sennrich 2019; the order of rounding is Gemma's (``GemmaRMSNorm`` in transformers).
"""

from __future__ import annotations

from phyai.facts import FactKind, FactSpec
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops.rms_norm.arg_specs import ARG_SPECS

EPS = Attr("eps", FactKind.NUMBER, 1e-6, "added to the mean square", minimum=0)
OFFSET = Attr("offset", FactKind.NUMBER, 0, "added to the weight: 1 for the 1 + w form", values=(0, 1))
HEADS = FactSpec("shape.heads", FactKind.NUMBER, "heads, where each head is normalized on its own", minimum=1)

OP = Op(
    name="rms_norm",
    doc=__doc__ or "",
    aliases=("rmsnorm",),
    tensors=(
        Tensor("x", ("...M", "D")),
        Tensor("weight", ("D",), "weight", optional=True, fill="near_one"),
        Tensor("y", ("...M", "D"), "output"),
    ),
    dims=(Dim("M", "rows", dynamic=True, minimum=0), Dim("D", "size that is normalized over")),
    attributes=(EPS, OFFSET),
    extra_facts=(HEADS,),
    arg_specs=ARG_SPECS,
)
