"""Residual norms of Gemma and of Cosmos3."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, COSMOS3, EXPERT, PREFIX, PREFIX_TOKENS

GEMMA = {"eps": 1e-6, "offset": 1}

ARG_SPECS = (
    ArgSpec("pi05.prefix", {"M": PREFIX_TOKENS, "D": PREFIX.width}, {}, GEMMA, facts=PREFIX.facts),
    ArgSpec(
        "pi0.expert", {"M": CHUNK + 1, "D": EXPERT.width}, {}, GEMMA, facts={**EXPERT.facts, "model.family": "pi0"}
    ),
    ArgSpec("cosmos3.gen", {"M": 1560, "D": COSMOS3.width}, facts=COSMOS3.facts),
    ArgSpec("small.odd", {"M": 5, "D": 7}),
    ArgSpec("small.offset", {"M": 3, "D": 16}, {}, GEMMA),
    ArgSpec("small.fp32", {"M": 4, "D": 24}, dict.fromkeys(("x", "residual", "weight", "y"), "fp32"), {"eps": 1e-5}),
    ArgSpec("small.fp64", {"M": 2, "D": 5}, dict.fromkeys(("x", "residual", "weight", "y"), "fp64"), GEMMA),
)
