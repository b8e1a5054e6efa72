"""Rotary position embedding of queries and keys at given positions.

::

    cos, sin = cos_sin[positions].chunk(2, dim=-1)         # [..., 1, rotary_dim / 2], the same for every head
    head, rest = x[..., :rotary_dim], x[..., rotary_dim:]  # rest is copied: partial rotation
    a, b = head.chunk(2, -1)            if style == "neox" else  (head[..., 0::2], head[..., 1::2])
    a, b = a * cos - b * sin, b * cos + a * sin            # in fp32 (fp64 for fp64), rounded once
    y = cat(a, b, rest)                 if style == "neox" else  cat(stack(a, b, -1).flatten(-2), rest)

for x in (q, k). With ``mrope_sections="t,h,w"`` (summing to rotary_dim / 2) positions are ``[3, ...M]``, and each of
the rotary_dim / 2 frequencies takes its angle from one of the three: consecutive sections of t, h and w frequencies,
or, with ``mrope_interleaved``, frequency i from ``("t", "h", "w")[i % 3]`` as long as that axis has frequencies left,
and from t after that.

Sources: Su et al. 2021; multimodal sections: Qwen2-VL; interleaved: Qwen3-VL (transformers'
``apply_interleaved_mrope``).
"""

from __future__ import annotations

from phyai.facts import FactKind
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops import contradictions, fits
from phyai.ops.rope.arg_specs import ARG_SPECS

STYLE = Attr("style", FactKind.NAME, "neox", "which pairs rotate: halves or neighbours", values=("neox", "interleaved"))
COS_SIN = Tensor(
    "cos_sin", ("max_position", "rotary_dim"), "weight", dtypes=("fp32", "fp64"), fill="cos_sin",
    doc="cosines of every frequency, then sines, per position",
)  # fmt: skip

OP = Op(
    name="rope",
    doc=__doc__ or "",
    aliases=("rotary_embedding",),
    tensors=(
        Tensor("q", ("...M", "heads", "head_dim")),
        Tensor("k", ("...M", "kv_heads", "head_dim")),
        Tensor("positions", ("...P",), dtypes=("int64", "int32"), fill="positions", doc="[...M], or [3, ...M]"),
        COS_SIN,
        Tensor("q_out", ("...M", "heads", "head_dim"), "output"),
        Tensor("k_out", ("...M", "kv_heads", "head_dim"), "output"),
    ),
    dims=(
        Dim("M", "tokens", dynamic=True, minimum=0),
        Dim("P", "given positions: M, or 3 M with mrope_sections", dynamic=True, minimum=0),
        Dim("max_position", "positions that cos_sin holds"),
        Dim("heads", "query heads"),
        Dim("kv_heads", "key heads"),
        Dim("head_dim", "size of one head"),
        Dim("rotary_dim", "how much of a head is rotated: even, at most head_dim", minimum=2),
    ),
    attributes=(
        STYLE,
        Attr("mrope_sections", FactKind.NAME, None, "frequencies of the three axes, as in 24,20,20"),
        Attr("mrope_interleaved", FactKind.FLAG, False, "the axes' frequencies alternate"),
    ),
    arg_specs=ARG_SPECS,
    fit=fits.rope,
    contradiction=contradictions.rope,
    synthesize="phyai.ops.rope.inputs:fill",
)
