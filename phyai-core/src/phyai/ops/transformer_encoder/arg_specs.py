"""SigLIP's encoder in π0.5, of three cameras and of two, and short ones."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import IMAGE_TOKENS, VISION

SIGLIP = {"S": IMAGE_TOKENS, "D": VISION.width, "I": VISION.mlp, "layers": 27}
SIGLIP_ATTRS = {"heads": VISION.heads, "eps": 1e-6, "activation": "gelu_tanh"}


def _small(name: str, b: int, s: int, layers: int, dtype: str = "bf16", heads: int = 2, **attrs: object) -> ArgSpec:
    dims = {"B": b, "S": s, "D": 6 * heads, "I": 8, "layers": layers}
    return ArgSpec(name, dims, {"x": dtype}, {"heads": heads, **attrs})


ARG_SPECS = (
    ArgSpec("pi05.vision", {"B": 3, **SIGLIP}, {}, SIGLIP_ATTRS, (), VISION.facts),
    ArgSpec("pi05.vision.2", {"B": 2, **SIGLIP}, {}, SIGLIP_ATTRS, (), VISION.facts),
    _small("small.one", 1, 3, 1, activation="gelu_tanh"),
    _small("small.fp32", 2, 5, 2, "fp32", heads=3, activation="gelu", eps=1e-6),
    _small("small.fp64", 2, 4, 2, "fp64", heads=1, activation="silu"),
    _small("small.fp16", 3, 2, 1, "fp16", activation="gelu_tanh"),
)
