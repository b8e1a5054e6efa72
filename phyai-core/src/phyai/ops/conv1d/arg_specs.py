"""One-dimensional convolutions of audio decoders."""

from __future__ import annotations

from phyai.op import ArgSpec

ALL = ("x", "weight", "bias", "y")
BIAS = ("bias",)
SOUND = {"model.family": "cosmos3", "role": "sound"}


def dims(b: int, c: int, o: int, length: int, kernel: int, out: int, groups: int = 1) -> dict[str, int]:
    return {"B": b, "C": c, "C_group": c // groups, "O": o, "L": length, "kernel": kernel, "L_out": out}


ARG_SPECS = (
    ArgSpec("cosmos3.sound", dims(1, 512, 512, 750, 7, 750), {}, {"padding": 9, "dilation": 3}, BIAS, SOUND),
    ArgSpec("small.plain", dims(2, 3, 5, 9, 3, 7)),
    ArgSpec("small.stride", dims(1, 4, 6, 10, 3, 5), {}, {"stride": 2, "padding": 1}, BIAS),
    ArgSpec("small.dilation", dims(1, 2, 2, 9, 3, 5), dict.fromkeys(ALL, "fp32"), {"dilation": 2}, BIAS),
    ArgSpec("small.groups", dims(2, 4, 6, 5, 2, 4, groups=2), dict.fromkeys(ALL, "fp32"), {"groups": 2}),
    ArgSpec("small.fp64", dims(1, 2, 3, 4, 2, 3), dict.fromkeys(ALL, "fp64"), {}, BIAS),
)
