"""Scaled dot-product attention over keys and values in a paged cache.

::

    for b in range(B):                                           # every request
        pages = kv_indices[kv_indptr[b] : kv_indptr[b + 1]]
        length = (len(pages) - 1) * page_size + last_page_len[b] # 0 when it has no page
        keys, values = (cache[pages].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
        rows = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        o[rows] = attention(q[rows], keys, values)               # with the op ``attention``'s mathematics

Rows of q after ``cu_seqlens_q[B]`` belong to no request and give zeros. The keys of the queries themselves are in the
cache already (``kv_write``).

``plan(metadata)`` gets the four metadata tensors once per step; every layer with the same heads and dtypes shares the
state that it returns. They are the engine's own buffers: a plan may keep them, and an engine that replays a captured
graph writes new values into the same buffers and plans again before the replay.

Two attributes are promises of the call site: with ``single_page`` every request has exactly one page, so that its keys
are one contiguous slab; with ``fixed_lengths`` the metadata never change under a captured graph, so that a kernel may
fix lengths when it plans.

Source: the layout of FlashInfer's ``BatchPrefillWithPagedKVCacheWrapper`` (NHD).
"""

from __future__ import annotations

from phyai.facts import FactKind
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops import contradictions, fits
from phyai.ops.attention.signature import ATTRIBUTES, GROUP, group
from phyai.ops.attention_paged.arg_specs import ARG_SPECS

_INT32 = ("int32",)

OP = Op(
    name="attention_paged",
    doc=__doc__ or "",
    tensors=(
        Tensor("q", ("T", "heads", "head_dim"), doc="queries of all requests, one after another"),
        Tensor("k_cache", ("pages", "page_size", "kv_heads", "head_dim")),
        Tensor("v_cache", ("pages", "page_size", "kv_heads", "head_dim")),
        Tensor(
            "cu_seqlens_q",
            ("B+1",),
            "metadata",
            dtypes=_INT32,
            fill="zeros",
            doc="first query of every request, and the end",
        ),
        Tensor(
            "kv_indptr",
            ("B+1",),
            "metadata",
            dtypes=_INT32,
            fill="zeros",
            doc="first entry of kv_indices of every request",
        ),
        Tensor(
            "kv_indices", ("entries",), "metadata", dtypes=_INT32, fill="zeros", doc="pages of all requests, in order"
        ),
        Tensor(
            "last_page_len", ("B",), "metadata", dtypes=_INT32, fill="zeros", doc="keys in every request's last page"
        ),
        Tensor("o", ("T", "heads", "head_dim"), "output"),
    ),
    dims=(
        Dim("T", "queries of all requests", dynamic=True, minimum=0),
        Dim("B", "requests", dynamic=True, minimum=0),
        Dim("entries", "pages that requests refer to, with repetition", dynamic=True, minimum=0),
        Dim("pages", "pages of the cache"),
        Dim("page_size", "keys per page"),
        Dim("heads", "query heads: a multiple of kv_heads"),
        Dim("kv_heads", "key and value heads"),
        Dim("head_dim", "size of one head"),
    ),
    attributes=(
        *ATTRIBUTES,
        Attr("single_page", FactKind.FLAG, False, "every request has exactly one page"),
        Attr("fixed_lengths", FactKind.FLAG, False, "the metadata never change under a captured graph"),
    ),
    extra_facts=(GROUP,),
    derive=group,
    arg_specs=ARG_SPECS,
    fit=fits.attention_paged,
    contradiction=contradictions.heads,
    synthesize="phyai.ops.attention_paged.inputs:fill",
)
