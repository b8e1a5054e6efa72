"""Token embedding of Gemma, and of one shard of it."""

from __future__ import annotations

import math

from phyai.op import ArgSpec
from phyai.ops.shapes import PREFIX, VOCABULARY

_HALF = VOCABULARY // 2

ARG_SPECS = (
    ArgSpec(
        "pi05.prefix",
        {"M": 200, "V": VOCABULARY, "D": PREFIX.width},
        {},
        {"scale": math.sqrt(PREFIX.width)},
        (),
        PREFIX.facts,
    ),
    ArgSpec(
        "pi05.prefix.shard",
        {"M": 200, "V": _HALF, "D": PREFIX.width},
        {},
        {"start": _HALF, "end": VOCABULARY},
        (),
        PREFIX.facts,
    ),
    ArgSpec("small.plain", {"M": 5, "V": 11, "D": 3}),
    ArgSpec("small.scale", {"M": 5, "V": 11, "D": 8}, {"ids": "int32"}, {"scale": 8**0.5}),
    ArgSpec("small.shard", {"M": 9, "V": 6, "D": 4}, {}, {"start": 4, "end": 10}),
    ArgSpec(
        "small.shard.scale",
        {"M": 9, "V": 6, "D": 4},
        {"weight": "fp32", "y": "fp32"},
        {"start": 4, "end": 9, "scale": 3.0},
    ),
    ArgSpec("small.fp64", {"M": 2, "V": 3, "D": 2}, {"weight": "fp64", "y": "fp64"}),
)
