"""Feed-forward blocks of π0.5's action expert."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, EXPERT

ALL = ("x", "residual", "gate", "gate_up", "down", "y")
GELU_TANH, SILU = {"activation": "gelu_tanh"}, {"activation": "silu"}
BLOCK = {"K": EXPERT.width, "I": EXPERT.mlp, "N": EXPERT.width}

ARG_SPECS = (
    ArgSpec("pi05.expert", {"M": CHUNK, "R": 1, **BLOCK}, {}, GELU_TANH, facts=EXPERT.facts),
    ArgSpec("pi05.expert.b8", {"M": 8 * CHUNK, "R": 8, **BLOCK}, {}, GELU_TANH, facts=EXPERT.facts),
    ArgSpec("small.odd", {"M": 6, "R": 3, "K": 7, "I": 6, "N": 3}, {}, GELU_TANH),
    ArgSpec("small.rows", {"M": 4, "R": 4, "K": 16, "I": 8, "N": 16}, {}, SILU),
    ArgSpec("small.fp32", {"M": 4, "R": 1, "K": 8, "I": 12, "N": 8}, dict.fromkeys(ALL, "fp32"), SILU),
    ArgSpec("small.fp64", {"M": 2, "R": 1, "K": 3, "I": 4, "N": 5}, dict.fromkeys(ALL, "fp64"), {"activation": "gelu"}),
)
