"""Residual norms of SigLIP."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.layer_norm.arg_specs import AFFINE
from phyai.ops.shapes import IMAGE_TOKENS, VISION

ALL = ("x", "residual", "weight", "bias", "y")
SIGLIP = {"eps": 1e-6}

ARG_SPECS = (
    ArgSpec("pi05.vision", {"M": 3 * IMAGE_TOKENS, "D": VISION.width}, {}, SIGLIP, AFFINE, VISION.facts),
    ArgSpec(
        "pi0.vision", {"M": 2 * IMAGE_TOKENS, "D": VISION.width}, dict.fromkeys(ALL, "fp32"), SIGLIP, AFFINE,
        {**VISION.facts, "model.family": "pi0"},
    ),
    ArgSpec("small.one", {"M": 1, "D": 1}, {}, {}, AFFINE),
    ArgSpec("small.odd", {"M": 5, "D": 7}, {}, {}, AFFINE),
    ArgSpec("small.plain", {"M": 4, "D": 12}),
    ArgSpec("small.weight", {"M": 4, "D": 12}, {}, {}, ("weight",)),
    ArgSpec("small.fp32weight", {"M": 4, "D": 24}, {"weight": "fp32", "bias": "fp32"}, {}, AFFINE),
    ArgSpec("small.fp32", {"M": 3, "D": 32}, dict.fromkeys(ALL, "fp32"), {"eps": 1e-2}, AFFINE),
    ArgSpec("small.fp64", {"M": 2, "D": 5}, dict.fromkeys(ALL, "fp64"), SIGLIP, AFFINE),
)  # fmt: skip
