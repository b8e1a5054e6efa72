"""The action experts of π0.5 and π0: ten steps over the prefix of three cameras and 200 tokens (π0: 48), and short
chunks."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, EXPERT, IMAGE_TOKENS, PREFIX_TOKENS, Tower

NARROW = ("k_cache", "v_cache", "qkv", "o", "gate_up", "down", "modulation")
#: What π0 has beyond π0.5, and part of it.
TIMED = ("fixed", "time", "embed_weight", "embed_bias")
WIDE = ("x", "y", "in_weight", "in_bias", "out_weight", "out_bias", "cos_sin")
PI0_PAGE = -(-(3 * IMAGE_TOKENS + 48 + 1 + CHUNK) // 16) * 16
TINY = Tower("test", "test", width=12, mlp=8, heads=4, kv_heads=2, head_dim=6)


def _spec(
    name: str, tower: Tower, layers: int, steps: int, m: int, b: int, page_size: int, *, narrow: str = "bf16",
    wide: str = "fp32", activation: str = "gelu_tanh", present: tuple[str, ...] = (), family: str = "pi05",
) -> ArgSpec:  # fmt: skip
    dims = {
        "M": m, "B": b, "A": 32 if tower is EXPERT else 5, "layers": layers, "pages": b, "page_size": page_size,
        "kv_heads": tower.kv_heads, "head_dim": tower.head_dim, "N": tower.qkv, "D": tower.width,
        "O": tower.attention, "I": tower.mlp, "steps": steps, "norms": 2 * layers + 1, "max_position": page_size,
    }  # fmt: skip
    dtypes = {**dict.fromkeys(NARROW, narrow), **dict.fromkeys((*WIDE, *present), wide), "lengths": "int32"}
    attrs = {"heads": tower.heads, "activation": activation}
    facts = {} if tower is TINY else {**tower.facts, "model.family": family}
    return ArgSpec(name, dims, dtypes, attrs, present, facts)


ARG_SPECS = (
    _spec("pi05.expert", EXPERT, 18, 10, CHUNK, 1, -(-(PREFIX_TOKENS + CHUNK) // 16) * 16),
    _spec("pi05.short", EXPERT, 18, 10, 10, 1, 608),
    _spec("pi0.expert", EXPERT, 18, 10, CHUNK, 1, PI0_PAGE, present=TIMED, family="pi0"),
    _spec("small.one", TINY, 2, 2, 3, 1, 9),
    _spec("small.batch", TINY, 1, 3, 6, 2, 8, narrow="fp32"),
    _spec("small.silu", TINY, 2, 1, 2, 2, 5, narrow="fp64", wide="fp64", activation="silu"),
    _spec("small.timed", TINY, 2, 2, 6, 2, 8, present=TIMED),
    _spec("small.fixed", TINY, 1, 2, 4, 2, 7, narrow="fp32", present=("fixed", "time")),
)
