"""Attention of SigLIP, of Gemma's prefix and of Cosmos3's towers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, COSMOS3, EXPERT, IMAGE_TOKENS, PREFIX, PREFIX_TOKENS, VISION, Tower

RAGGED = ("cu_seqlens_q", "cu_seqlens_k")
MASK = ("mask",)
TINY = Tower("test", "test", width=32, mlp=64, heads=4, kv_heads=2, head_dim=16)
ODD = Tower("test", "test", width=18, mlp=7, heads=6, kv_heads=2, head_dim=9)
EVEN = Tower("test", "test", width=32, mlp=64, heads=3, kv_heads=3, head_dim=32)


def _spec(
    name: str, tower: Tower, b: int, sq: int, sk: int, present: tuple[str, ...] = (), dtype: str = "bf16",
    sequences: int = 1, **attributes: Any,
) -> ArgSpec:  # fmt: skip
    dims = {"B": b, "Sq": sq, "Sk": sk, "heads": tower.heads, "kv_heads": tower.kv_heads, "head_dim": tower.head_dim}
    if present == RAGGED:
        dims |= {"R": sequences}
        attributes |= {"layout": "ragged"}
    facts: Mapping[str, Any] = {} if tower.family == "test" else tower.facts
    return ArgSpec(name, dims, dict.fromkeys("qkvo", dtype), attributes, present, facts)


ARG_SPECS = (
    _spec("pi05.vision", VISION, 3, IMAGE_TOKENS, IMAGE_TOKENS),
    _spec("pi0.vision", VISION, 2, IMAGE_TOKENS, IMAGE_TOKENS, dtype="fp32"),
    _spec("pi05.prefix", PREFIX, 1, PREFIX_TOKENS, PREFIX_TOKENS),
    _spec("pi05.prefix.masked", PREFIX, 2, PREFIX_TOKENS, PREFIX_TOKENS, MASK),
    _spec("pi05.expert", EXPERT, 1, CHUNK, PREFIX_TOKENS + CHUNK),
    _spec("cosmos3.und", COSMOS3, 1, 512, 512, causal=True),
    _spec("cosmos3.gen", COSMOS3, 1, 1560, 2072),
    _spec("cosmos3.gen.ragged", COSMOS3, 1, 3120, 4144, RAGGED, sequences=2),
    _spec("small.padded", TINY, 2, 5, 5),
    _spec("small.causal", TINY, 2, 6, 6, causal=True),
    _spec("small.trailing", TINY, 1, 3, 8, causal=True),
    _spec("small.window", TINY, 1, 7, 7, causal=True, window=3),
    _spec("small.window.both", TINY, 1, 7, 7, window=3),
    _spec("small.soft_cap", TINY, 1, 4, 9, soft_cap=5.0, scale=0.5),
    _spec("small.mask", TINY, 2, 5, 7, MASK),
    _spec("small.ragged", TINY, 1, 11, 17, RAGGED, sequences=3),
    _spec("small.ragged.causal", TINY, 1, 9, 13, RAGGED, sequences=2, causal=True),
    _spec("small.odd", ODD, 3, 1, 5),
    _spec("small.fp32", EVEN, 2, 8, 8, dtype="fp32"),
    _spec("small.fp32.mask", EVEN, 2, 4, 6, MASK, dtype="fp32"),
    _spec("small.fp32.group", TINY, 2, 4, 6, dtype="fp32"),
    _spec("small.fp16", EVEN, 1, 8, 16, dtype="fp16"),
    _spec("small.fp64", TINY, 2, 3, 5, MASK, dtype="fp64"),
)
