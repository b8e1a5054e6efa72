"""Rotary embeddings of Gemma, of Cosmos3 (three axes) and of Qwen3.5 (a quarter of the head)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.facts import FactValue
from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, COSMOS3, EXPERT, PREFIX, PREFIX_TOKENS

_Heads = tuple[int, int, int]
GEMMA: _Heads = (PREFIX.heads, PREFIX.kv_heads, PREFIX.head_dim)
COSMOS: _Heads = (COSMOS3.heads, COSMOS3.kv_heads, COSMOS3.head_dim)
MROPE: dict[str, Any] = {"mrope_sections": "24,20,20", "mrope_interleaved": True}


def _spec(
    name: str, m: int, heads: _Heads, rotary_dim: int, positions: int, facts: Mapping[str, FactValue] = {},
    dtype: str = "bf16", **attributes: Any,
) -> ArgSpec:  # fmt: skip
    dims = dict(zip(("heads", "kv_heads", "head_dim"), heads, strict=True))
    dims |= {
        "M": m,
        "P": 3 * m if "mrope_sections" in attributes else m,
        "rotary_dim": rotary_dim,
        "max_position": positions,
    }
    return ArgSpec(name, dims, dict.fromkeys(("q", "k", "q_out", "k_out"), dtype), attributes, (), facts)


ARG_SPECS = (
    _spec("pi05.prefix", PREFIX_TOKENS, GEMMA, 256, 1024, PREFIX.facts),
    _spec("pi05.expert", CHUNK, GEMMA, 256, 1024, EXPERT.facts),
    _spec("cosmos3.gen", 1560, COSMOS, 128, 4096, COSMOS3.facts, **MROPE),
    _spec("qwen3_5.partial", 256, (8, 2, 256), 64, 4096, {"model.family": "qwen3_5", "role": "prefix"}),
    _spec("small.neox", 5, (4, 2, 8), 8, 16),
    _spec("small.interleaved", 5, (4, 2, 8), 8, 16, style="interleaved"),
    _spec("small.partial", 3, (3, 1, 10), 6, 9),
    _spec("small.partial.interleaved", 3, (3, 1, 10), 4, 9, style="interleaved"),
    _spec("small.mrope", 4, (2, 2, 12), 12, 20, mrope_sections="2,2,2"),
    _spec("small.mrope.interleaved", 4, (2, 1, 16), 16, 20, mrope_sections="4,2,2", mrope_interleaved=True),
    _spec("small.fp32", 6, (2, 1, 16), 16, 8, dtype="fp32"),
    _spec("small.fp64", 2, (1, 1, 4), 4, 8, dtype="fp64"),
)
