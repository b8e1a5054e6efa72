"""Norms of the WAN VAE in Cosmos3."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import VAE

ARG_SPECS = (
    ArgSpec("cosmos3.vae.mid", {"B": 1, "C": 640, "S": 30 * 52}, facts=VAE),
    ArgSpec("cosmos3.vae.up", {"B": 1, "C": 160, "S": 120 * 208}, facts=VAE),
    ArgSpec("small.odd", {"B": 2, "C": 5, "S": 7}),
    ArgSpec("small.bias", {"B": 1, "C": 8, "S": 3}, present=("bias",)),
    ArgSpec("small.eps", {"B": 1, "C": 4, "S": 6}, dict.fromkeys(("x", "weight", "y"), "fp32"), {"eps": 2.0}),
    ArgSpec("small.fp64", {"B": 1, "C": 3, "S": 2}, dict.fromkeys(("x", "weight", "bias", "y"), "fp64"), {}, ("bias",)),
)
