"""Feed-forward blocks of Gemma and Cosmos3."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, COSMOS3, EXPERT, PREFIX, PREFIX_TOKENS, Tower

ALL = ("x", "gate_up", "down", "y")
GELU_TANH, SILU = {"activation": "gelu_tanh"}, {"activation": "silu"}


def _dims(tower: Tower, m: int) -> dict[str, int]:
    return {"M": m, "K": tower.width, "I": tower.mlp, "N": tower.width}


ARG_SPECS = (
    ArgSpec("pi05.prefix", _dims(PREFIX, PREFIX_TOKENS), {}, GELU_TANH, facts=PREFIX.facts),
    ArgSpec("pi05.expert", _dims(EXPERT, CHUNK), {}, GELU_TANH, facts=EXPERT.facts),
    ArgSpec("cosmos3.gen", _dims(COSMOS3, 1560), {}, SILU, facts=COSMOS3.facts),
    ArgSpec("small.odd", {"M": 5, "K": 7, "I": 6, "N": 3}, {}, GELU_TANH),
    ArgSpec("small.fp32", {"M": 4, "K": 8, "I": 12, "N": 8}, dict.fromkeys(ALL, "fp32"), SILU),
    ArgSpec("small.fp64", {"M": 2, "K": 3, "I": 4, "N": 5}, dict.fromkeys(ALL, "fp64"), {"activation": "gelu"}),
)
