"""Projections of π0.5's prefix and expert."""

from __future__ import annotations

from typing import Any

from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, EXPERT, PREFIX, PREFIX_TOKENS, Tower

FLOATING = ("x", "k_cache", "v_cache", "weight", "bias", "q")


def _spec(
    name: str, tower: Tower, t: int, pages: int, page_size: int, dtype: str = "bf16", present: tuple[str, ...] = (),
    rotary_dim: int | None = None, **attributes: Any,
) -> ArgSpec:  # fmt: skip
    heads = {"heads": tower.heads, "kv_heads": tower.kv_heads, "head_dim": tower.head_dim}
    dims = {
        **heads, "T": t, "K": tower.width, "N": tower.qkv, "pages": pages, "page_size": page_size,
        "max_position": 1024, "rotary_dim": rotary_dim or tower.head_dim,
    }  # fmt: skip
    facts = {} if tower.family == "test" else tower.facts
    return ArgSpec(name, dims, dict.fromkeys(FLOATING, dtype), {**heads, **attributes}, present, facts)


TINY = Tower("test", "test", width=12, mlp=8, heads=4, kv_heads=2, head_dim=8)

ARG_SPECS = (
    _spec("pi05.prefix", PREFIX, PREFIX_TOKENS, 1, PREFIX_TOKENS + CHUNK),
    _spec("pi05.expert", EXPERT, CHUNK, 1, PREFIX_TOKENS + CHUNK),
    _spec("small.paged", TINY, 5, 4, 3),
    _spec("small.bias", TINY, 3, 2, 7, present=("bias",), style="interleaved"),
    _spec("small.partial", TINY, 4, 2, 4, "fp32", rotary_dim=4),
    _spec("small.fp64", TINY, 2, 1, 6, "fp64"),
)
