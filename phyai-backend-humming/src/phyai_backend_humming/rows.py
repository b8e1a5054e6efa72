"""The records of ``humming.*``: the layout, and the kernels with what each can execute.

A row's predicate is what the library's own configuration, heuristics and code generation accept, for every number of
rows, once N and K are padded as :mod:`phyai_backend_humming.convert` pads them; the tests compare the two.
Scales must be ones that the kernels read as they are: a group's or a channel's in the type of the inputs (or e8m0 or
e4m3 where the format says so), a tensor's or a block's in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics, Param
from phyai.predicates import match
from phyai.quant.formats import QuantFormat

LAYOUT = "humming"

#: The architectures that the library generates code for.
ARCHS: tuple[str, ...] = (
    "sm75", "sm80", "sm86", "sm87", "sm89", "sm90", "sm100", "sm103", "sm110", "sm120", "sm121",
)  # fmt: skip
_BF16_ARCHS = ARCHS[1:]
_FP8_ARCHS = ARCHS[4:]
_TRITON_ARCHS = ARCHS[1:]  # Triton quantizes the inputs
#: Tensor cores that multiply int4, and Triton.
_INT4_ARCHS = ("sm80", "sm86", "sm87", "sm89")
#: FP8 block scales beside one scale per token.
_BLOCK_BY_TOKEN_ARCHS = [arch for arch in _FP8_ARCHS if not arch.startswith("sm12")]
_GROUPS = [16, 32, 64, 128, 256]
_GROUPS_A8 = _GROUPS[1:]
_GROUPS_A4 = _GROUPS[2:]
_EXACT_IN_FP32 = ["fp32", "bf16", "fp16"]
_INPUT_RULES = ["amax", "full_range", "inverse"]

Facts = Mapping[str, Any]
#: The kinds of weight that a row reads, by the dtype of inputs and outputs.
Weights = Callable[[str], Iterable[Facts]]

FORMAT = QuantFormat(
    name="humming.packed",
    layout=LAYOUT,
    when=match(
        {
            "quant.weight": ["int4", "uint4", "int8", "uint8", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1"],
            "shape.K": "%8",
        }
    ),
    pack="phyai_backend_humming.layout:pack",
    unpack="phyai_backend_humming.layout:unpack",
    doc="int32 words along K, lowest bits first; integers with their sign bit inverted; K filled up to whole groups",
)


def _shared(dtype: str, groups: Sequence[int]) -> list[Facts]:
    """One scale per channel, or per group of inputs, in the type of the inputs."""
    return [
        {"quant.granularity": "channel", "quant.scale_dtype": dtype},
        {"quant.granularity": "group", "quant.group_size": list(groups), "quant.scale_dtype": dtype},
    ]


_TENSOR: Facts = {"quant.granularity": "tensor", "quant.scale_dtype": _EXACT_IN_FP32}


def _block(sizes_n: Sequence[int], sizes_k: Sequence[int]) -> Facts:
    return {
        "quant.granularity": "block", "quant.block_n": list(sizes_n), "quant.block_k": list(sizes_k),
        "quant.scale_dtype": _EXACT_IN_FP32,
    }  # fmt: skip


def _integers(bits: int, groups: Sequence[int], *, zero_points: bool) -> Weights:
    def kinds(dtype: str) -> Iterable[Facts]:
        scales = _shared(dtype, groups)
        yield {"quant.weight": f"int{bits}", "quant.zero_point": None, "any_of": [*scales, _TENSOR]}
        if zero_points:
            yield {"quant.weight": [f"int{bits}", f"uint{bits}"], "quant.zero_point": "int", "any_of": scales}

    return kinds


def _fp8(dtype: str) -> Iterable[Facts]:
    scales = [*_shared(dtype, _GROUPS), _TENSOR, _block([64, 128], [64, 128])]
    if dtype == "bf16":  # e8m0 reaches beyond fp16
        scales.append({"quant.granularity": "group", "quant.group_size": 32, "quant.scale_dtype": "e8m0"})
    yield {"quant.weight": ["fp8_e4m3", "fp8_e5m2"], "any_of": scales}


def _fp8_by_token(dtype: str) -> Iterable[Facts]:
    yield {"quant.weight": "fp8_e4m3", "any_of": [*_shared(dtype, _GROUPS_A8), _TENSOR]}
    yield {"quant.weight": "fp8_e4m3", "device.arch": _BLOCK_BY_TOKEN_ARCHS, **_block([64, 128], [64, 128])}


def _mxfp4(dtype: str) -> Iterable[Facts]:  # e8m0 reaches beyond fp16
    return [{"quant.format": "mxfp4"}] if dtype == "bf16" else []


def _nvfp4(dtype: str) -> Iterable[Facts]:
    return [{"quant.format": "nvfp4"}]


_BY_TOKEN: Facts = {
    "any_of": [
        {"quant.activation_granularity": "token", "quant.activation_dynamic": True},
        {"quant.activation_granularity": "tensor", "quant.activation_dynamic": False},
    ],
}
_BY_GROUP_128: Facts = {
    "quant.activation_granularity": "group", "quant.activation_dynamic": True,
    "quant.fields.activation_group_size": "128", "quant.granularity": "block", "quant.block_n": [64, 128],
    "quant.block_k": 128, "quant.scale_dtype": _EXACT_IN_FP32, "quant.weight": "fp8_e4m3", "shape.K": "%128",
}  # fmt: skip


def _inputs(element: str, archs: Sequence[str]) -> Facts:
    """Inputs that are quantized on the way in."""
    return {
        "quant.activation": element, "quant.fields.activation_format": element,
        "quant.fields.activation_zero_point": None, "quant.fields.activation_scale_rule": _INPUT_RULES,
        "device.arch": list(archs), "shape.K": "%16,<=32768", "lib.triton": ">=3.3",
    }  # fmt: skip


_A16: Facts = {"quant.activation": None, "shape.K": "%8"}
_A8_FP8 = _inputs("fp8_e4m3", _FP8_ARCHS)
_A8_INT8 = _inputs("int8", _TRITON_ARCHS)
_A4_INT4: Facts = {**_inputs("int4", _INT4_ARCHS), "shape.K": "%32,<=32768"}


def _when(inputs: Facts, *combinations: tuple[Facts, Weights]) -> Facts:
    """``combinations`` pair what holds of inputs with the kinds of weight that go with it."""
    found = []
    for dtype, archs in (("bf16", _BF16_ARCHS), ("fp16", ARCHS)):
        call = {"dtype.x": dtype, "dtype.y": dtype, "dtype.bias": [None, dtype], "device.arch": list(archs)}
        for given, weights in combinations:
            found += [{**call, "all_of": [given, kind]} for kind in weights(dtype)]
    return {
        "quant.scheme": "*",  # first: of an ordinary weight it is what a reader wants to know
        "device.type": "cuda", "device.vendor": "nvidia", "lib.humming": ">=0.1.20,<0.2", "shape.N": "%8",
        "quant.g_idx": False, "quant.pre_scale": False, "quant.fields.output": None,
        "all_of": [inputs, {"any_of": [{"quant.second_scale": False}, {"quant.format": "nvfp4"}]}, {"any_of": found}],
    }  # fmt: skip


_ROWS = Param(
    "rows",
    "numbers of rows (M) to compile for; a call takes the kernel of the next larger one. When absent: the M that the "
    "site fixes, else the least and the greatest that it may have and, between them, 16, 64, 256, 1024 and 4096",
)


def _rows(variant: str, doc: str, when: Facts, accumulation: str = "fp32") -> tuple[Kernel, Kernel]:
    """The row as the library schedules it, and the one whose sums do not depend on the other rows of a call, which are
    ``accumulation`` throughout."""
    predicate = match(when)

    def row(suffix: str, more: str, numerics: Numerics, rank: int) -> Kernel:
        return Kernel(
            id=f"humming.gemm.{variant}{suffix}", op="gemm", when=predicate, capture=Capture.AFTER_WARMUP,
            prepare=f"phyai_backend_humming.gemm:prepare{suffix}", numerics=numerics, band=Band.OPTIMIZED, rank=rank,
            layouts=(LAYOUT,), params=(_ROWS,), compile="phyai_backend_humming.precompile:compile_ahead",
            doc=f"{doc}{more}",
        )  # fmt: skip

    return (
        row("", "", Numerics(reproducible=False, accumulation="output"), 10),  # Stream-K adds partial results there
        row(
            "_batch_invariant",
            "; no Stream-K, one schedule for every M",
            Numerics(reproducible=True, batch_invariant=True, accumulation=accumulation),
            0,
        ),
    )


KERNELS: tuple[Kernel, ...] = (
    *_rows("w4a16", "int4 weight, 16-bit inputs",
           _when(_A16, ({}, _integers(4, _GROUPS, zero_points=True)))),
    *_rows("w8a16", "int8 weight, 16-bit inputs",
           _when(_A16, ({}, _integers(8, _GROUPS, zero_points=True)))),
    *_rows("fp8_a16", "fp8 weight, 16-bit inputs", _when(_A16, ({}, _fp8))),
    *_rows("mxfp4_a16", "mxfp4 weight, bf16 inputs", _when(_A16, ({}, _mxfp4))),
    *_rows("nvfp4_a16", "nvfp4 weight, 16-bit inputs", _when(_A16, ({}, _nvfp4))),
    *_rows("fp8_a8", "fp8 weight and inputs",
           _when(_A8_FP8, (_BY_TOKEN, _fp8_by_token), (_BY_GROUP_128, lambda _dtype: [{}]))),
    *_rows("int8_a8", "int8 weight and inputs",
           _when(_A8_INT8, (_BY_TOKEN, _integers(8, _GROUPS_A8, zero_points=False))), "int32"),
    *_rows("int4_a8_fp8", "int4 weight, fp8 inputs",
           _when(_A8_FP8, (_BY_TOKEN, _integers(4, _GROUPS_A8, zero_points=True)))),
    *_rows("int4_a8_int8", "int4 weight, int8 inputs",
           _when(_A8_INT8, (_BY_TOKEN, _integers(4, _GROUPS_A8, zero_points=True))), "int32"),
    *_rows("int4_a4", "int4 weight and inputs, where tensor cores multiply them",
           _when(_A4_INT4, (_BY_TOKEN, _integers(4, _GROUPS_A4, zero_points=False))), "int32"),
    *_rows("mxfp4_a8", "mxfp4 weight, fp8 inputs", _when(_A8_FP8, (_BY_TOKEN, _mxfp4))),
    Kernel(
        id="humming.quantize_activation",
        op="quantize_activation",
        when=match(
            {
                "device.type": "cuda", "device.vendor": "nvidia", "lib.triton": ">=3.3",
                "device.arch": ">=sm80", "dtype.x": ["bf16", "fp16"],
                "all_of": [
                    {"any_of": [{"attrs.format": "int8"}, {"attrs.format": "fp8_e4m3", "device.arch": ">=sm89"}]},
                    {"any_of": [
                        {"attrs.granularity": "tensor", "dtype.scale": "fp32"},
                        {"attrs.granularity": "token", "dtype.scale": None, "shape.K": "<=32768"},
                        {"attrs.granularity": "group", "dtype.scale": None, "attrs.group_size": "1..32768"},
                    ]},
                ],
            }
        ),
        prepare="phyai_backend_humming.activation:prepare",
        capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True, batch_invariant=True),
        band=Band.OPTIMIZED,
        doc="one launch: largest magnitude, scale and codes of every token or group",
    ),
)  # fmt: skip
