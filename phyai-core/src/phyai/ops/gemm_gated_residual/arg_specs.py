"""Output projections of π0.5's action expert."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, EXPERT

ALL = ("x", "residual", "gate", "weight", "bias", "y")
O_PROJ = {"K": EXPERT.attention, "N": EXPERT.width}

ARG_SPECS = (
    ArgSpec("pi05.expert.o", {"M": CHUNK, "R": 1, **O_PROJ}, facts=EXPERT.facts),
    ArgSpec("pi05.expert.o.b8", {"M": 8 * CHUNK, "R": 8, **O_PROJ}, facts=EXPERT.facts),
    ArgSpec("small.one", {"M": 1, "R": 1, "K": 1, "N": 1}),
    ArgSpec("small.odd", {"M": 15, "R": 3, "K": 13, "N": 7}, present=("bias",)),
    ArgSpec("small.rows", {"M": 4, "R": 4, "K": 16, "N": 16}),
    ArgSpec("small.fp32", {"M": 6, "R": 2, "K": 8, "N": 24}, dict.fromkeys(ALL, "fp32"), present=("bias",)),
    ArgSpec("small.fp64", {"M": 6, "R": 1, "K": 3, "N": 5}, dict.fromkeys(ALL, "fp64"), present=("bias",)),
)
