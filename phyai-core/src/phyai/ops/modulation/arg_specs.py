"""Modulations of diffusion transformers."""

from __future__ import annotations

from phyai.op import ArgSpec

ALL = ("x", "scale", "shift", "gate", "y")
QWEN = {"model.family": "qwen_image", "role": "dit"}
GROOT = {"model.family": "gr00t", "role": "dit"}

ARG_SPECS = (
    ArgSpec("qwen_image.dit", {"M": 4096, "R": 1, "D": 3072}, present=("shift",), facts=QWEN),
    ArgSpec("gr00t.dit", {"M": 2 * 49, "R": 2, "D": 1536}, present=("shift",), facts=GROOT),
    ArgSpec("small.scale", {"M": 5, "R": 1, "D": 7}),
    ArgSpec("small.shift", {"M": 6, "R": 3, "D": 7}, present=("shift",)),
    ArgSpec("small.gate", {"M": 6, "R": 2, "D": 8}, present=("gate",)),
    ArgSpec("small.all", {"M": 4, "R": 4, "D": 16}, present=("shift", "gate")),
    ArgSpec("small.fp32", {"M": 6, "R": 2, "D": 24}, dict.fromkeys(ALL, "fp32"), present=("shift", "gate")),
    ArgSpec("small.fp64", {"M": 6, "R": 1, "D": 5}, dict.fromkeys(ALL, "fp64"), present=("shift",)),
)
