"""Convolutions of the WAN VAE and of Qwen3-VL's patches."""

from __future__ import annotations

from phyai.op import ArgSpec
from phyai.ops.conv2d.arg_specs import dims as dims2d
from phyai.ops.shapes import VAE

ALL = ("x", "weight", "bias", "y")
BIAS = ("bias",)
QWEN = {"model.family": "qwen3_vl", "role": "vision"}


def dims(
    b: int,
    c: int,
    o: int,
    frames: int,
    size: int,
    kernel_t: int,
    kernel: int,
    frames_out: int,
    out: int,
    groups: int = 1,
) -> dict[str, int]:
    return {**dims2d(b, c, o, size, kernel, out, groups), "T": frames, "kernel_t": kernel_t, "T_out": frames_out}


ARG_SPECS = (
    ArgSpec("cosmos3.vae", dims(1, 160, 160, 6, 128, 3, 3, 4, 128), {}, {"padding": 1, "padding_t": 0}, BIAS, VAE),
    ArgSpec("qwen3_vl.patch", dims(1024, 3, 1152, 2, 16, 2, 16, 1, 1), {}, {"stride": 16, "stride_t": 2}, BIAS, QWEN),
    ArgSpec("small.plain", dims(1, 2, 3, 4, 5, 2, 3, 3, 3)),
    ArgSpec("small.time", dims(1, 2, 3, 5, 4, 3, 2, 3, 2), {}, {"stride": 2, "stride_t": 1}, BIAS),
    ArgSpec(
        "small.causal",
        dims(2, 2, 2, 4, 3, 3, 3, 2, 3),
        dict.fromkeys(ALL, "fp32"),
        {"padding": 1, "padding_t": 0},
        BIAS,
    ),
    ArgSpec(
        "small.dilation", dims(1, 2, 2, 5, 5, 2, 2, 3, 4), dict.fromkeys(ALL, "fp32"), {"dilation": 1, "dilation_t": 2}
    ),
    ArgSpec("small.groups", dims(1, 4, 2, 2, 3, 1, 2, 2, 2, groups=2), dict.fromkeys(ALL, "fp32"), {"groups": 2}),
    ArgSpec("small.fp64", dims(1, 2, 3, 2, 3, 2, 2, 1, 2), dict.fromkeys(ALL, "fp64"), {}, BIAS),
)
