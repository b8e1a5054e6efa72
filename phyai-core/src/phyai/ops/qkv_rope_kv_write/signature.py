"""Project to queries, keys and values, rotate queries and keys, and write keys and values into the paged cache.

::

    qkv = x @ weight.T + bias
    q, k, v = qkv.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=-1)
    q, k = rope(q, k, positions, cos_sin, style)
    kv_write(k, v, k_cache, v_cache, slots)
    return q

Composite: of the ops ``gemm``, ``rope`` and ``kv_write``. The caches are mutated; slots of one call are distinct.
"""

from __future__ import annotations

from phyai.facts import FactKind
from phyai.op import FLOATS, SUM_TOLERANCE, Attr, Dim, Op, Part, Tensor
from phyai.ops import contradictions, fits
from phyai.ops.gemm.signature import CODES
from phyai.ops.qkv_rope_kv_write.arg_specs import ARG_SPECS
from phyai.ops.rope.signature import COS_SIN, STYLE

OP = Op(
    name="qkv_rope_kv_write",
    doc=__doc__ or "",
    tensors=(
        Tensor("x", ("T", "K")),
        Tensor("positions", ("T",), dtypes=("int64", "int32"), fill="positions"),
        Tensor("k_cache", ("pages", "page_size", "kv_heads", "head_dim"), mutated=True),
        Tensor("v_cache", ("pages", "page_size", "kv_heads", "head_dim"), mutated=True),
        Tensor("slots", ("T",), dtypes=("int64",), fill="slots", doc="where each row goes: page * page_size + offset"),
        Tensor("weight", ("N", "K"), "weight", dtypes=(*FLOATS, *CODES), doc="rows of q, then of k, then of v"),
        Tensor("bias", ("N",), "weight", optional=True),
        COS_SIN,
        Tensor("q", ("T", "heads", "head_dim"), "output"),
    ),
    dims=(
        Dim("T", "tokens", dynamic=True, minimum=0),
        Dim("K", "inputs per token"),
        Dim("N", "(heads + 2 * kv_heads) * head_dim"),
        Dim("pages", "pages of the cache"),
        Dim("page_size", "keys per page"),
        Dim("max_position", "positions that cos_sin holds"),
        Dim("heads", "query heads"),
        Dim("kv_heads", "key and value heads"),
        Dim("head_dim", "size of one head"),
        Dim("rotary_dim", "how much of a head is rotated: even, at most head_dim", minimum=2),
    ),
    attributes=(
        Attr("heads", FactKind.NUMBER, 1, "query heads", whole=True, minimum=1),
        Attr("kv_heads", FactKind.NUMBER, 1, "key and value heads", whole=True, minimum=1),
        Attr("head_dim", FactKind.NUMBER, 64, "size of one head", whole=True, minimum=1),
        STYLE,
    ),
    tolerance=SUM_TOLERANCE,  # the projection may be rounded before the rotation adds two of its values
    parts=(
        Part("qkv", "gemm", weights={"weight": "weight", "bias": "bias"}, dims={"M": "T"}),
        Part(
            "rope", "rope", weights={"cos_sin": "cos_sin"}, attrs={"style": "style"}, dims={"M": "T", "P": "T"},
            dtypes={"positions": "positions", "q_out": "q"},
        ),
        Part("kv_write", "kv_write", dtypes={"k_cache": "k_cache", "v_cache": "v_cache", "slots": "slots"}),
    ),
    compose="phyai.ops.qkv_rope_kv_write.decompose:compose",
    arg_specs=ARG_SPECS,
    fit=fits.qkv_rope_kv_write,
    contradiction=contradictions.qkv_rope_kv_write,
)  # fmt: skip
