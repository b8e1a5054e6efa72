"""Patch embedding of SigLIP, and convolutions of image autoencoders."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import VAE, VISION

ALL = ("x", "weight", "bias", "y")
BIAS = ("bias",)


def dims(b: int, c: int, o: int, size: int, kernel: int, out: int, groups: int = 1) -> dict[str, int]:
    """Dimensions of a call with square images and kernels."""
    square = {"H": size, "W": size, "kernel_h": kernel, "kernel_w": kernel, "H_out": out, "W_out": out}
    return {"B": b, "C": c, "C_group": c // groups, "O": o, **square}


ARG_SPECS = (
    ArgSpec("pi05.vision.patch", dims(3, 3, VISION.width, 224, 14, 16), {}, {"stride": 14}, BIAS, VISION.facts),
    ArgSpec(
        "pi0.vision.patch", dims(2, 3, VISION.width, 224, 14, 16), dict.fromkeys(ALL, "fp32"), {"stride": 14}, BIAS,
        {**VISION.facts, "model.family": "pi0"},
    ),
    ArgSpec("vae.down", dims(1, 128, 128, 128, 3, 64), {}, {"stride": 2, "padding": 1}, BIAS, VAE),
    ArgSpec("small.plain", dims(2, 3, 5, 6, 3, 4)),
    ArgSpec("small.patch", dims(1, 3, 8, 8, 4, 2), {}, {"stride": 4}, BIAS),
    ArgSpec("small.padding", dims(1, 2, 3, 5, 3, 5), dict.fromkeys(ALL, "fp32"), {"padding": 1}, BIAS),
    ArgSpec("small.groups", dims(1, 4, 4, 5, 3, 3, groups=4), dict.fromkeys(ALL, "fp32"), {"groups": 4}),
    ArgSpec("small.dilation", dims(1, 2, 2, 7, 3, 3), dict.fromkeys(ALL, "fp32"), {"dilation": 2}, BIAS),
    ArgSpec("small.fp16", dims(1, 2, 4, 4, 2, 2), dict.fromkeys(ALL, "fp16"), {"stride": 2}, BIAS),
    ArgSpec("small.fp64", dims(1, 2, 3, 4, 2, 3), dict.fromkeys(ALL, "fp64"), {}, BIAS),
)  # fmt: skip
