"""All layers of a pre-norm transformer encoder, and the norm behind them.

::

    h = x
    for l in range(layers):
        y = layer_norm(h, norm1_weight[l], norm1_bias[l], eps)
        q, k, v = split(y @ qkv[l].T + qkv_bias[l], 3)                # each of heads, which divide D
        h = h + attention(q, k, v) @ o[l].T + o_bias[l]               # each sequence by itself, over all of it
        y = layer_norm(h, norm2_weight[l], norm2_bias[l], eps)
        h = h + activation(y @ fc1[l].T + fc1_bias[l]) @ fc2[l].T + fc2_bias[l]
    y = layer_norm(h, norm_weight, norm_bias, eps)

Its decomposition is the caller's own chain of layers (``Dispatcher.bind(..., chain=...)``): how many there are, and
their names, are the model's affair. A kernel may keep what lies between in higher precision, and may have a norm's
weight and bias in the product behind it: ``layer_norm(h) @ w.T`` of a row with mean m and deviation s is
``(h @ v.T - m * v.sum(1)) / s + w @ norm_bias`` with ``v = w * norm_weight``.

Source: Vaswani et al. 2017, with norms in front (Xiong et al. 2020); the vision tower of SigLIP (Zhai et al. 2023).
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from phyai.facts import FactKind, FactSpec, FactValue
from phyai.op import DEFAULT_TOLERANCE, ArgSpec, Attr, Dim, Op, Tensor, Tolerance
from phyai.ops.activation.signature import ACTIVATION
from phyai.ops.layer_norm.signature import EPS
from phyai.ops.transformer_encoder.arg_specs import ARG_SPECS

#: Every layer rounds what it adds, and the residual stream is rounded to the input's dtype twice a layer.
TOLERANCE = {
    **DEFAULT_TOLERANCE,
    "fp32": Tolerance(rtol=1e-3, atol=1e-4, relative_norm=1e-4),
    "fp16": Tolerance(rtol=8e-2, atol=2e-2, relative_norm=1e-2),
    "bf16": Tolerance(rtol=8e-2, atol=1e-1, relative_norm=3e-2),
}


def fit(spec: ArgSpec) -> ArgSpec:
    """Heads divide the width."""
    heads = int(spec.attrs.get("heads") or 1)
    width = -(-spec.dims["D"] // heads) * heads
    return evolve(spec, dims={**spec.dims, "D": width})


def contradiction(facts: Mapping[str, FactValue]) -> str | None:
    """Heads that do not divide the width.

    >>> contradiction({"shape.D": 9, "attrs.heads": 2})
    'D=9 is not a multiple of heads=2'
    """
    width, heads = facts.get("shape.D"), facts.get("attrs.heads")
    if not isinstance(width, int) or not isinstance(heads, int) or width % heads == 0:
        return None
    return f"D={width} is not a multiple of heads={heads}"


HEAD_DIM = FactSpec("shape.head_dim", FactKind.NUMBER, "size of one head: D / heads", minimum=1)


def derive(facts: Mapping[str, FactValue]) -> Mapping[str, FactValue]:
    """``shape.head_dim``, where it is known."""
    width, heads = facts.get("shape.D"), facts.get("attrs.heads")
    return {"shape.head_dim": width // heads} if isinstance(width, int) and isinstance(heads, int) and heads else {}


OP = Op(
    name="transformer_encoder",
    doc=__doc__ or "",
    tensors=(
        Tensor("x", ("...B", "S", "D")),
        Tensor("norm1_weight", ("layers", "D"), "weight", fill="near_one", doc="in front of attention"),
        Tensor("norm1_bias", ("layers", "D"), "weight"),
        Tensor("qkv", ("layers", "3*D", "D"), "weight", doc="rows of q, then of k, then of v"),
        Tensor("qkv_bias", ("layers", "3*D"), "weight"),
        Tensor("o", ("layers", "D", "D"), "weight"),
        Tensor("o_bias", ("layers", "D"), "weight"),
        Tensor("norm2_weight", ("layers", "D"), "weight", fill="near_one", doc="in front of the feed-forward block"),
        Tensor("norm2_bias", ("layers", "D"), "weight"),
        Tensor("fc1", ("layers", "I", "D"), "weight"),
        Tensor("fc1_bias", ("layers", "I"), "weight"),
        Tensor("fc2", ("layers", "D", "I"), "weight"),
        Tensor("fc2_bias", ("layers", "D"), "weight"),
        Tensor("norm_weight", ("D",), "weight", fill="near_one", doc="behind all layers"),
        Tensor("norm_bias", ("D",), "weight"),
        Tensor("y", ("...B", "S", "D"), "output"),
    ),
    dims=(
        Dim("B", "sequences", dynamic=True, minimum=0),
        Dim("S", "rows of a sequence", dynamic=True, minimum=0),
        Dim("D", "width: a multiple of heads"),
        Dim("I", "intermediate size"),
        Dim("layers", "layers"),
    ),
    attributes=(Attr("heads", FactKind.NUMBER, 1, "heads of attention", whole=True, minimum=1), EPS, ACTIVATION),
    extra_facts=(HEAD_DIM,),
    derive=derive,
    tolerance=TOLERANCE,
    arg_specs=ARG_SPECS,
    synthesize="phyai.ops.transformer_encoder.inputs:fill",
    fit=fit,
    contradiction=contradiction,
    chained=True,
)
