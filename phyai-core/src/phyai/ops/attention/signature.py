"""Scaled dot-product attention over keys and values given with the call.

::

    k, v = (t.repeat_interleave(heads // kv_heads, dim=head) for t in (k, v))
    s = einsum("qhd,khd->hqk", q, k) * (scale or head_dim ** -0.5)
    s = soft_cap * tanh(s / soft_cap)                        # with soft_cap
    p = arange(Sq)[:, None] + Sk - Sq                        # a query's position: aligned to the last key
    j = arange(Sk)[None]
    keep = mask                                              # bool, True keeps; all True when absent
    keep &= j <= p                                           # with causal
    keep &= p - j < window                                   # with window: so many keys up to one's own, and all after
    o = einsum("hqk,khd->qhd", softmax(s.where(keep, -inf)), v)

per sequence, the softmax in fp32 (fp64 for fp64). A query that may see no key gives zeros.

``layout`` says how sequences lie: ``padded`` tensors are ``[B, S, heads, head_dim]``; ``ragged`` ones are
``[tokens, heads, head_dim]`` with sequence r in rows ``cu_seqlens[r]:cu_seqlens[r + 1]`` (then B is 1, Sq and Sk count
all tokens, and there is no mask).

Sources: Vaswani et al. 2017; soft capping: Gemma 2; causal alignment: FlashAttention 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping

from phyai.facts import FactKind, FactSpec, FactValue
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops import contradictions, fits
from phyai.ops.attention.arg_specs import ARG_SPECS

#: Attributes that every attention op has.
ATTRIBUTES = (
    Attr("causal", FactKind.FLAG, False, "a query sees no later key; the last query is aligned to the last key"),
    Attr(
        "window",
        FactKind.NUMBER,
        None,
        "a query sees this many keys up to its own position, and none before",
        whole=True,
        minimum=1,
    ),
    Attr("soft_cap", FactKind.NUMBER, None, "scores s become soft_cap * tanh(s / soft_cap)", positive=True),
    Attr("scale", FactKind.NUMBER, None, "factor of the scores; 1 / sqrt(head_dim) when absent"),
)

GROUP = FactSpec("shape.group", FactKind.NUMBER, "query heads per key head: heads / kv_heads", minimum=1)
SQUARE = FactSpec("attrs.square", FactKind.FLAG, "as many queries as keys: Sq equals Sk", dynamic=True)


def group(facts: Mapping[str, FactValue]) -> dict[str, FactValue]:
    """``shape.group``, where the heads are known."""
    heads, kv_heads = facts.get("shape.heads"), facts.get("shape.kv_heads")
    if isinstance(heads, int) and isinstance(kv_heads, int) and kv_heads:
        return {"shape.group": heads // kv_heads}
    return {}


def derive(facts: Mapping[str, FactValue]) -> Mapping[str, FactValue]:
    """``shape.group`` and ``attrs.square``, as far as they are known."""
    derived = group(facts)
    if "shape.Sq" in facts and "shape.Sk" in facts:
        derived["attrs.square"] = facts["shape.Sq"] == facts["shape.Sk"]
    return derived


OP = Op(
    name="attention",
    doc=__doc__ or "",
    aliases=("sdpa",),
    tensors=(
        Tensor("q", ("...B", "Sq", "heads", "head_dim"), doc="queries"),
        Tensor("k", ("...B", "Sk", "kv_heads", "head_dim"), doc="keys"),
        Tensor("v", ("...B", "Sk", "kv_heads", "head_dim"), doc="values"),
        Tensor("mask", ("B", "Sq", "Sk"), dtypes=("bool",), optional=True, fill="mask", doc="True keeps; padded only"),
        Tensor("cu_seqlens_q", ("R+1",), dtypes=("int32",), optional=True, fill="zeros", doc="ragged only"),
        Tensor("cu_seqlens_k", ("R+1",), dtypes=("int32",), optional=True, fill="zeros", doc="ragged only"),
        Tensor("o", ("...B", "Sq", "heads", "head_dim"), "output"),
    ),
    dims=(
        Dim("B", "sequences of a padded call; 1 for a ragged one", dynamic=True, minimum=0),
        Dim("Sq", "queries per sequence; all of them for a ragged call", dynamic=True, minimum=0),
        Dim("Sk", "keys per sequence; all of them for a ragged call", dynamic=True, minimum=0),
        Dim("R", "sequences of a ragged call", dynamic=True, minimum=0),
        Dim("heads", "query heads: a multiple of kv_heads"),
        Dim("kv_heads", "key and value heads"),
        Dim("head_dim", "size of one head"),
    ),
    attributes=(
        Attr("layout", FactKind.NAME, "padded", "how sequences lie", values=("padded", "ragged")),
        *ATTRIBUTES,
    ),
    extra_facts=(GROUP, SQUARE),
    derive=derive,
    arg_specs=ARG_SPECS,
    fit=fits.attention,
    contradiction=contradictions.heads,
    synthesize="phyai.ops.attention.inputs:fill",
)
