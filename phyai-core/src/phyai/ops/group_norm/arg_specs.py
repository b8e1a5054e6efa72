"""Group norms of image encoders and decoders."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import VAE

AFFINE = ("weight", "bias")

ARG_SPECS = (
    ArgSpec("vae.mid", {"B": 1, "C": 512, "S": 60 * 104}, {}, {"groups": 32, "eps": 1e-6}, AFFINE, VAE),
    ArgSpec("vae.up", {"B": 1, "C": 128, "S": 240 * 416}, {}, {"groups": 32, "eps": 1e-6}, AFFINE, VAE),
    ArgSpec("small.odd", {"B": 2, "C": 6, "S": 5}, {}, {"groups": 3}, AFFINE),
    ArgSpec("small.plain", {"B": 1, "C": 4, "S": 9}, {}, {"groups": 4}),
    ArgSpec("small.fp32weight", {"B": 2, "C": 4, "S": 6}, {"weight": "fp32", "bias": "fp32"}, {"groups": 2}, AFFINE),
    ArgSpec(
        "small.fp32",
        {"B": 3, "C": 8, "S": 4},
        dict.fromkeys(("x", "weight", "bias", "y"), "fp32"),
        {"groups": 2},
        AFFINE,
    ),
    ArgSpec(
        "small.fp64",
        {"B": 1, "C": 6, "S": 3},
        dict.fromkeys(("x", "weight", "bias", "y"), "fp64"),
        {"groups": 1},
        AFFINE,
    ),
)
