"""Feed-forward blocks of SigLIP."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import IMAGE_TOKENS, VISION

MATRICES = ("x", "fc1", "fc2", "y")
BIASES = ("fc1_bias", "fc2_bias")
GELU_TANH = {"activation": "gelu_tanh"}
SIGLIP = {"K": VISION.width, "I": VISION.mlp, "N": VISION.width}

ARG_SPECS = (
    ArgSpec("pi05.vision", {"M": 3 * IMAGE_TOKENS, **SIGLIP}, {}, GELU_TANH, BIASES, VISION.facts),
    ArgSpec(
        "pi0.vision", {"M": 2 * IMAGE_TOKENS, **SIGLIP}, dict.fromkeys((*MATRICES, *BIASES), "fp32"), GELU_TANH, BIASES,
        {**VISION.facts, "model.family": "pi0"},
    ),
    ArgSpec("small.odd", {"M": 5, "K": 7, "I": 6, "N": 3}, {}, GELU_TANH, BIASES),
    ArgSpec("small.plain", {"M": 4, "K": 8, "I": 16, "N": 8}, {}, {"activation": "silu"}),
    ArgSpec("small.fc1_bias", {"M": 3, "K": 8, "I": 4, "N": 5}, {}, GELU_TANH, ("fc1_bias",)),
    ArgSpec(
        "small.fp32", {"M": 4, "K": 8, "I": 12, "N": 8}, dict.fromkeys((*MATRICES, *BIASES), "fp32"),
        {"activation": "gelu"}, BIASES,
    ),
    ArgSpec("small.fp64", {"M": 2, "K": 3, "I": 4, "N": 5}, dict.fromkeys(MATRICES, "fp64"), GELU_TANH),
)  # fmt: skip
