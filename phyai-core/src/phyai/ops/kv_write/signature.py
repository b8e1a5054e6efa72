"""Write keys and values into a paged cache.

::

    k_cache.view(pages * page_size, kv_heads, head_dim)[slots] = k
    v_cache.view(pages * page_size, kv_heads, head_dim)[slots] = v

A slot is the flat index ``page * page_size + offset``. Slots of one call are distinct: writing one twice is undefined.
Returns nothing; the caches are mutated.
"""

from __future__ import annotations

from phyai.op import Dim, Op, Tensor
from phyai.ops import fits
from phyai.ops.kv_write.arg_specs import ARG_SPECS

OP = Op(
    name="kv_write",
    doc=__doc__ or "",
    tensors=(
        Tensor("k", ("T", "kv_heads", "head_dim"), doc="new keys"),
        Tensor("v", ("T", "kv_heads", "head_dim"), doc="new values"),
        Tensor("k_cache", ("pages", "page_size", "kv_heads", "head_dim"), mutated=True),
        Tensor("v_cache", ("pages", "page_size", "kv_heads", "head_dim"), mutated=True),
        Tensor("slots", ("T",), dtypes=("int64",), fill="slots", doc="where each row goes: page * page_size + offset"),
    ),
    dims=(
        Dim("T", "rows to write", dynamic=True, minimum=0),
        Dim("pages", "pages of the cache"),
        Dim("page_size", "keys per page"),
        Dim("kv_heads", "key and value heads"),
        Dim("head_dim", "size of one head"),
    ),
    arg_specs=ARG_SPECS,
    fit=fits.kv_write,
)
