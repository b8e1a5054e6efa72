"""Layer normalization over the last dimension.

::

    x32 = x.float()                                        # fp64 stays fp64
    centred = x32 - x32.mean(-1, keepdim=True)
    n = centred * rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps)
    y = (n * weight.float() + bias.float()).to(x.dtype)    # each of the two where it is given

Source: Ba et al. 2016; ``torch.nn.functional.layer_norm``.
"""

from __future__ import annotations

from collections.abc import Mapping

from phyai.facts import FactKind, FactSpec, FactValue
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops.layer_norm.arg_specs import ARG_SPECS
from phyai.ops.rms_norm.signature import HEADS

EPS = Attr("eps", FactKind.NUMBER, 1e-5, "added to the variance", minimum=0)
BIAS = FactSpec("attrs.bias", FactKind.FLAG, "a bias is given")


def derive(facts: Mapping[str, FactValue]) -> Mapping[str, FactValue]:
    """``attrs.bias``: whether a bias is given."""
    return {"attrs.bias": "dtype.bias" in facts}


OP = Op(
    name="layer_norm",
    doc=__doc__ or "",
    aliases=("layernorm",),
    tensors=(
        Tensor("x", ("...M", "D")),
        Tensor("weight", ("D",), "weight", optional=True, fill="near_one"),
        Tensor("bias", ("D",), "weight", optional=True),
        Tensor("y", ("...M", "D"), "output"),
    ),
    dims=(Dim("M", "rows", dynamic=True, minimum=0), Dim("D", "size that is normalized over")),
    attributes=(EPS,),
    extra_facts=(HEADS, BIAS),
    derive=derive,
    arg_specs=ARG_SPECS,
)
