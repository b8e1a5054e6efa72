"""π0.5's action expert: ten steps over the prefix of three cameras and 200 tokens, and short chunks."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, EXPERT, PREFIX_TOKENS, Tower

NARROW = ("k_cache", "v_cache", "qkv", "o", "gate_up", "down", "modulation")
WIDE = ("x", "y", "in_weight", "in_bias", "out_weight", "out_bias", "cos_sin")
TINY = Tower("test", "test", width=12, mlp=8, heads=4, kv_heads=2, head_dim=6)


def _spec(
    name: str, tower: Tower, layers: int, steps: int, m: int, b: int, page_size: int, *, narrow: str = "bf16",
    wide: str = "fp32", activation: str = "gelu_tanh",
) -> ArgSpec:  # fmt: skip
    dims = {
        "M": m, "B": b, "A": 32 if tower is EXPERT else 5, "layers": layers, "pages": b, "page_size": page_size,
        "kv_heads": tower.kv_heads, "head_dim": tower.head_dim, "N": tower.qkv, "D": tower.width,
        "O": tower.attention, "I": tower.mlp, "steps": steps, "norms": 2 * layers + 1, "max_position": page_size,
    }  # fmt: skip
    dtypes = {**dict.fromkeys(NARROW, narrow), **dict.fromkeys(WIDE, wide), "lengths": "int32"}
    return ArgSpec(
        name, dims, dtypes, {"heads": tower.heads, "activation": activation}, (), {} if tower is TINY else tower.facts
    )


ARG_SPECS = (
    _spec("pi05.expert", EXPERT, 18, 10, CHUNK, 1, -(-(PREFIX_TOKENS + CHUNK) // 16) * 16),
    _spec("pi05.short", EXPERT, 18, 10, 10, 1, 608),
    _spec("small.one", TINY, 2, 2, 3, 1, 9),
    _spec("small.batch", TINY, 1, 3, 6, 2, 8, narrow="fp32"),
    _spec("small.silu", TINY, 2, 1, 2, 2, 5, narrow="fp64", wide="fp64", activation="silu"),
)
