"""Cache writes of π0.5's prefix and expert."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, EXPERT, PREFIX, PREFIX_TOKENS

_SLAB = {"pages": 1, "page_size": PREFIX_TOKENS + CHUNK, "kv_heads": 1, "head_dim": 256}
_SMALL = {"pages": 5, "page_size": 4, "kv_heads": 2, "head_dim": 6}


ARG_SPECS = (
    ArgSpec("pi05.prefix", {"T": PREFIX_TOKENS, **_SLAB}, facts=PREFIX.facts),
    ArgSpec("pi05.expert", {"T": CHUNK, **_SLAB}, facts=EXPERT.facts),
    ArgSpec("small.paged", {"T": 7, **_SMALL}),
    ArgSpec("small.one", {"T": 1, **_SMALL, "page_size": 1}),
    ArgSpec("small.fp32", {"T": 20, **_SMALL}, dict.fromkeys(("k", "v", "k_cache", "v_cache"), "fp32")),
)
