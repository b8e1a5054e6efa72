"""RMS norms of Gemma (``1 + w``) and of Cosmos3's queries and keys."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, COSMOS3, EXPERT, PREFIX, PREFIX_TOKENS

WEIGHT = ("weight",)
GEMMA = {"eps": 1e-6, "offset": 1}
FP32 = dict.fromkeys(("x", "weight", "y"), "fp32")
FP64 = dict.fromkeys(("x", "weight", "y"), "fp64")

ARG_SPECS = (
    ArgSpec("pi05.prefix", {"M": PREFIX_TOKENS, "D": PREFIX.width}, {}, GEMMA, WEIGHT, PREFIX.facts),
    ArgSpec("pi05.prefix.fp32", {"M": PREFIX_TOKENS, "D": PREFIX.width}, FP32, GEMMA, WEIGHT, PREFIX.facts),
    ArgSpec(
        "pi0.expert", {"M": CHUNK + 1, "D": EXPERT.width}, {}, GEMMA, WEIGHT, {**EXPERT.facts, "model.family": "pi0"}
    ),
    ArgSpec(
        "cosmos3.gen.qk", {"M": 1560 * COSMOS3.heads, "D": COSMOS3.head_dim}, {}, {"eps": 1e-6}, WEIGHT,
        {**COSMOS3.facts, "shape.heads": COSMOS3.heads},
    ),
    ArgSpec("small.one", {"M": 1, "D": 1}, {}, {}, WEIGHT),
    ArgSpec("small.odd", {"M": 5, "D": 7}, {}, {}, WEIGHT),
    ArgSpec("small.offset", {"M": 3, "D": 16}, {}, GEMMA, WEIGHT),
    ArgSpec("small.plain", {"M": 4, "D": 12}),
    ArgSpec("small.fp32weight", {"M": 4, "D": 24}, {"weight": "fp32"}, {"eps": 1e-5}, WEIGHT),
    ArgSpec("small.fp32", {"M": 3, "D": 32}, FP32, {"eps": 1e-2}, WEIGHT),
    ArgSpec("small.fp16", {"M": 3, "D": 8}, dict.fromkeys(("x", "weight", "y"), "fp16"), {}, WEIGHT),
    ArgSpec("small.fp64", {"M": 2, "D": 5}, FP64, GEMMA, WEIGHT),
)  # fmt: skip
