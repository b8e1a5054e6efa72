"""Attention of π0.5's prefix and expert over the shared cache, and of decoding."""

from __future__ import annotations

from typing import Any

from phyai.op import ArgSpec
from phyai.ops.attention.arg_specs import EVEN, ODD, TINY
from phyai.ops.shapes import CHUNK, COSMOS3, EXPERT, PREFIX, PREFIX_TOKENS, PREFIX_TOKENS_2, Tower


def _spec(
    name: str,
    tower: Tower,
    b: int,
    t: int,
    pages: int,
    page_size: int,
    entries: int,
    dtype: str = "bf16",
    **attributes: Any,
) -> ArgSpec:
    dims = {
        "B": b, "T": t, "pages": pages, "page_size": page_size, "entries": entries,
        "heads": tower.heads, "kv_heads": tower.kv_heads, "head_dim": tower.head_dim,
    }  # fmt: skip
    facts = {} if tower.family == "test" else tower.facts
    return ArgSpec(name, dims, dict.fromkeys(("q", "k_cache", "v_cache", "o"), dtype), attributes, (), facts)


ARG_SPECS = (
    _spec("pi05.prefix", PREFIX, 1, PREFIX_TOKENS, 1, PREFIX_TOKENS + CHUNK, 1, single_page=True, fixed_lengths=True),
    _spec("pi05.prefix.b2", PREFIX, 2, 2 * PREFIX_TOKENS_2, 2, PREFIX_TOKENS_2 + CHUNK, 2, single_page=True),
    _spec("pi05.expert", EXPERT, 1, CHUNK, 1, PREFIX_TOKENS + CHUNK, 1, single_page=True, fixed_lengths=True),
    _spec("pi05.expert.2cam", EXPERT, 1, CHUNK, 1, PREFIX_TOKENS_2 + CHUNK, 1, single_page=True, fixed_lengths=True),
    _spec("pi05.expert.b8", EXPERT, 8, 8 * CHUNK, 8, PREFIX_TOKENS + CHUNK, 8, single_page=True),
    _spec("cosmos3.decode", COSMOS3, 4, 4, 64, 16, 64, causal=True),
    _spec("small.slab", TINY, 2, 10, 2, 12, 2, single_page=True),
    _spec("small.slab.fp32", EVEN, 2, 9, 3, 8, 2, "fp32", single_page=True),
    _spec("small.slab.causal", TINY, 2, 6, 2, 9, 2, "fp32", single_page=True, causal=True),
    _spec("small.slab.fixed", TINY, 1, 5, 1, 16, 1, single_page=True, fixed_lengths=True),
    _spec("small.slab.fixed.fp16", EVEN, 2, 7, 2, 8, 2, "fp16", single_page=True, fixed_lengths=True),
    _spec("small.paged", TINY, 3, 8, 9, 4, 7),
    _spec("small.paged.page1", TINY, 2, 4, 16, 1, 11, "fp32"),
    _spec("small.paged.causal", TINY, 2, 7, 8, 4, 6, causal=True),
    _spec("small.paged.window", TINY, 2, 5, 8, 4, 6, causal=True, window=3),
    _spec("small.paged.soft_cap", TINY, 2, 5, 8, 4, 6, soft_cap=5.0, scale=0.5),
    _spec("small.odd", ODD, 3, 5, 5, 3, 5, "fp32"),
    _spec("small.fp64", TINY, 2, 5, 8, 4, 6, "fp64"),
)
