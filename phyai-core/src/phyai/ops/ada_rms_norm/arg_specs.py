"""Adaptive norms of π0.5's action expert."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, EXPERT

FP32 = dict.fromkeys(("x", "modulation", "y", "gate"), "fp32")

ARG_SPECS = (
    ArgSpec("pi05.expert", {"M": CHUNK, "R": 1, "D": EXPERT.width}, facts=EXPERT.facts),
    ArgSpec("pi05.expert.b8", {"M": 8 * CHUNK, "R": 8, "D": EXPERT.width}, facts=EXPERT.facts),
    ArgSpec("small.one", {"M": 1, "R": 1, "D": 1}),
    ArgSpec("small.odd", {"M": 15, "R": 3, "D": 7}, {}, {"eps": 1e-3}),
    ArgSpec("small.rows", {"M": 4, "R": 4, "D": 16}),
    ArgSpec("small.fp32modulation", {"M": 6, "R": 2, "D": 12}, {"modulation": "fp32"}),
    ArgSpec("small.fp32", {"M": 6, "R": 2, "D": 24}, FP32),
    ArgSpec("small.fp64", {"M": 6, "R": 1, "D": 5}, dict.fromkeys(("x", "modulation", "y", "gate"), "fp64")),
)
