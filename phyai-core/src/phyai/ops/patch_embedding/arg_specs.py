"""Patch embeddings of SigLIP."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import VISION

ALL = ("x", "position", "weight", "bias", "y")
#: Images as a camera's processor leaves them, everything else in 16 bits.
MIXED = {"x": "fp32", **dict.fromkeys(ALL[1:], "bf16")}
BIAS = ("bias",)


def dims(b: int, c: int, h: int, w: int, o: int, patch: int) -> dict[str, int]:
    """Dimensions of a call with images of ``h`` times ``w``."""
    patches = (h // patch) * (w // patch)
    return {"B": b, "C": c, "height": h, "width": w, "O": o, "patch": patch, "patches": patches}


SIGLIP = (3, 224, 224, VISION.width, 14)

ARG_SPECS = (
    ArgSpec("pi05.vision", dims(3, *SIGLIP), MIXED, {}, BIAS, VISION.facts),
    ArgSpec(
        "pi0.vision", dims(2, *SIGLIP), dict.fromkeys(ALL, "fp32"), {}, BIAS, {**VISION.facts, "model.family": "pi0"}
    ),
    ArgSpec("small.patch", dims(2, 3, 8, 12, 5, 4), {}, {}, BIAS),
    ArgSpec("small.plain", dims(1, 3, 6, 6, 8, 3)),
    ArgSpec("small.rest", dims(2, 2, 9, 7, 12, 2), {}, {}, BIAS),
    ArgSpec("small.mixed", dims(2, 3, 8, 8, 6, 4), MIXED, {}, BIAS),
    ArgSpec("small.fp16", dims(1, 1, 4, 4, 3, 2), dict.fromkeys(ALL, "fp16"), {}, BIAS),
    ArgSpec("small.fp32", dims(3, 2, 4, 6, 7, 2), dict.fromkeys(ALL, "fp32"), {}, BIAS),
    ArgSpec("small.fp64", dims(1, 3, 5, 5, 2, 5), dict.fromkeys(ALL, "fp64")),
)
