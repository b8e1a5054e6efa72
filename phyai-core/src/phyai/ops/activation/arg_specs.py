"""Activations of SigLIP's MLP and of the time embedding."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import EXPERT, HEAD, IMAGE_TOKENS, VISION

FP32 = {"x": "fp32", "y": "fp32"}
GELU, GELU_TANH, SILU = ({"activation": name} for name in ("gelu", "gelu_tanh", "silu"))

ARG_SPECS = (
    ArgSpec("pi05.vision", {"M": 3 * IMAGE_TOKENS, "D": VISION.mlp}, {}, GELU_TANH, facts=VISION.facts),
    ArgSpec("pi05.head.time", {"M": 10, "D": EXPERT.width}, {}, SILU, facts=HEAD),
    ArgSpec("small.silu", {"M": 5, "D": 7}, {}, SILU),
    ArgSpec("small.gelu", {"M": 3, "D": 8}, {}, GELU),
    ArgSpec("small.gelu_tanh", {"M": 4, "D": 16}, {}, GELU_TANH),
    ArgSpec("small.silu.fp32", {"M": 1, "D": 1}, FP32, SILU),
    ArgSpec("small.gelu.fp32", {"M": 3, "D": 5}, FP32, GELU),
    ArgSpec("small.gelu_tanh.fp16", {"M": 3, "D": 5}, {"x": "fp16", "y": "fp16"}, GELU_TANH),
    ArgSpec("small.gelu.fp64", {"M": 3, "D": 5}, {"x": "fp64", "y": "fp64"}, GELU),
)
