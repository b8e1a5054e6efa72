"""Gated activations of Gemma (gelu_tanh) and Cosmos3 (silu)."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, COSMOS3, EXPERT, PREFIX, PREFIX_TOKENS

FP32 = {"x": "fp32", "y": "fp32"}
GELU, GELU_TANH, SILU = ({"activation": name} for name in ("gelu", "gelu_tanh", "silu"))

ARG_SPECS = (
    ArgSpec("pi05.prefix", {"M": PREFIX_TOKENS, "I": PREFIX.mlp}, {}, GELU_TANH, facts=PREFIX.facts),
    ArgSpec("pi05.expert", {"M": CHUNK, "I": EXPERT.mlp}, {}, GELU_TANH, facts=EXPERT.facts),
    ArgSpec("cosmos3.gen", {"M": 1560, "I": COSMOS3.mlp}, {}, SILU, facts=COSMOS3.facts),
    ArgSpec("small.silu", {"M": 5, "I": 7}, {}, SILU),
    ArgSpec("small.gelu", {"M": 3, "I": 8}, {}, GELU),
    ArgSpec("small.gelu_tanh", {"M": 4, "I": 16}, {}, GELU_TANH),
    ArgSpec("small.gelu_tanh.fp32", {"M": 1, "I": 1}, FP32, GELU_TANH),
    ArgSpec("small.silu.fp16", {"M": 3, "I": 5}, {"x": "fp16", "y": "fp16"}, SILU),
    ArgSpec("small.gelu.fp64", {"M": 3, "I": 5}, {"x": "fp64", "y": "fp64"}, GELU),
)
