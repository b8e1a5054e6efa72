"""The records of the rows with inputs of 8 bits.

FP8 products come twice: ``fast`` ones add up in the tensor cores' own accumulators, of about 14 bits of mantissa, where
the others move partial sums to fp32 every few steps. Sums of int8 products are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.predicates import match

from phyai_backend_cuda.records.conditions import ACTIVATIONS, HOPPER, OVERLAP, TRITON

#: One program holds a whole row of what is quantized.
ROW_LIMIT = "<=32768"
_X = {"any_of": [{"dtype.x": "fp32"}, {"dtype.x": "fp16"}, {"dtype.x": "bf16", "device.arch": ">=sm80"}]}
_FORMATS = [{"attrs.format": "int8"}, {"attrs.format": ["fp8_e4m3", "fp8_e5m2"], "device.arch": ">=sm89"}]
_GRANULARITIES = [
    {"attrs.granularity": "tensor"},
    {"attrs.granularity": "token", "shape.K": ROW_LIMIT},
    {"attrs.granularity": "group", "attrs.group_size": ROW_LIMIT},
]
_TOKEN: Mapping[str, Any] = {"granularity": ["channel", "tensor"], "activation_granularity": "token"}
#: Scales of weights by channels or one for all, of inputs by tokens or one for all.
_SCALES: list[Mapping[str, Any]] = [
    _TOKEN,
    {"granularity": "channel", "activation_granularity": "tensor"},
    {"granularity": "tensor", "activation_granularity": "tensor"},
]
BY_ROWS, _BY_TENSOR = _SCALES[:2], _SCALES[2:]


def a8(head: str, element: str, granularities: Sequence[Mapping[str, Any]] = _SCALES) -> dict[str, Any]:
    """Weight and input of one element type in the plain layout, with scales of one of ``granularities``. ``head`` is
    what stands before the facts of the product."""
    q = f"{head}quant"
    absent = ("second_scale", "g_idx", "pre_scale")
    return {
        f"{q}.layout": "plain",
        f"{q}.weight": element,
        f"{q}.activation": element,
        f"{q}.scale_dtype": ["fp32", "bf16", "fp16"],
        f"{q}.zero_point": None,
        f"{q}.fields.activation_scale_rule": ["amax", "full_range"],
        f"{q}.fields.activation_zero_point": None,
        f"{q}.fields.output": None,
        "all_of": [
            *({f"{q}.{name}": [None, False]} for name in absent),
            {"any_of": [{f"{q}.{name}": value for name, value in case.items()} for case in granularities]},
        ],
    }


class _Variant:
    """A form of codes, and how their products are added up."""

    def __init__(self, name: str, element: str, arch: str, accumulation: str, rank: int, doc: str) -> None:
        self.name, self.element, self.rank, self.doc = name, element, rank, doc
        self.arch, self.accumulation = {"device.arch": arch}, accumulation
        self.prepare = "prepare_fast" if accumulation == "fp22" else "prepare"


_VARIANTS = (
    _Variant("fp8_a8", "fp8_e4m3", ">=sm89", "fp32", 0, "torch._scaled_mm"),
    _Variant("fp8_a8_fast", "fp8_e4m3", ">=sm89", "fp22", -1, "torch._scaled_mm, accumulated fast"),
    _Variant("int8_a8", "int8", "sm90", "int32", 0, "int8 products through tensor maps"),
)
_FP8 = _VARIANTS[:2]


def _rows(
    op: str, module: str, doc: str, when: Any, *, normed: bool = False, variants: Sequence[_Variant] = _VARIANTS
) -> list[Kernel]:
    """A row for every variant; ``when`` gives the conditions of one, beside those of the device."""
    return [
        Kernel(
            id=f"cuda.{op}.{variant.name}", op=op, when=match({**TRITON, **variant.arch, **when(variant.element)}),
            prepare=f"phyai_backend_cuda.quantized.{module}:{_named(variant.prepare, normed)}",
            capture=Capture.AFTER_WARMUP,
            numerics=Numerics(reproducible=True, accumulation=variant.accumulation),
            band=Band.OPTIMIZED, rank=variant.rank, params=(OVERLAP,), doc=f"{doc}; {variant.doc}",
        )
        for variant in variants
    ]  # fmt: skip


def _named(prepare: str, normed: bool) -> str:
    return prepare.replace("prepare", "prepare_normed") if normed else prepare


def _gemm(element: str) -> dict[str, Any]:
    by_rows = {**a8("", element, BY_ROWS), "dtype.y": "bf16", "dtype.bias": [None, "bf16"]}
    by_tensor = [
        {**a8("", element, _BY_TENSOR), "dtype.y": dtype, "dtype.bias": [None, dtype]} for dtype in ("bf16", "fp16")
    ]
    return {
        "dtype.x": ["bf16", "fp16", "fp32"], "shape.N": "%16", "shape.K": f"%16,{ROW_LIMIT}",
        "any_of": [by_rows, *by_tensor],
    }  # fmt: skip


def _mlp(
    parts: tuple[str, str], *, head: str = "", tensors: Sequence[str] = ("x", "y"), biases: Sequence[str] = ()
) -> Any:
    def when(element: str) -> dict[str, Any]:
        return {
            **{f"dtype.{name}": "bf16" for name in tensors}, **{f"dtype.{bias}": [None, "bf16"] for bias in biases},
            "attrs.activation": ACTIVATIONS,
            "shape.K": f"%16,{ROW_LIMIT}", "shape.I": f"%16,{ROW_LIMIT}", "shape.N": "%16",
            "all_of": [a8(f"{head}parts.{part}.", element) for part in parts],
        }  # fmt: skip

    return when


def _qkv(*, head: str = "", tensors: Sequence[str] = ()) -> Any:
    def when(element: str) -> dict[str, Any]:
        named = ("x", "k_cache", "v_cache", "q", *tensors)
        return {
            **{f"dtype.{name}": "bf16" for name in named}, "dtype.bias": [None, "bf16"], "dtype.cos_sin": "fp32",
            "shape.K": f"%16,{ROW_LIMIT}", "shape.N": "%16", **a8(f"{head}parts.qkv.", element),
        }  # fmt: skip

    return when


def _fused(op: str, prepare: str, doc: str, head: str = "", tensors: Sequence[str] = ()) -> Kernel:
    """The row of ``csrc/gated.cu``, which was written for many rows on Hopper."""
    return Kernel(
        id=f"cuda.{op}.fp8_a8_fused", op=op,
        when=match({
            **TRITON, **HOPPER, **{f"dtype.{name}": "bf16" for name in ("x", "y", *tensors)},
            "attrs.activation": ACTIVATIONS, "shape.M": ">=256",
            "shape.K": f"%16,{ROW_LIMIT}", "shape.I": f"%128,{ROW_LIMIT}", "shape.N": "%16",
            "all_of": [a8(f"{head}parts.gate_up.", "fp8_e4m3", BY_ROWS), a8(f"{head}parts.down.", "fp8_e4m3")],
        }),
        prepare=f"phyai_backend_cuda.gated.mlp:{prepare}", capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True, accumulation="fp22"), band=Band.OPTIMIZED, rank=-2, params=(OVERLAP,),
        doc=f"{doc}; the first product and the activation in one launch, accumulated fast",
    )  # fmt: skip


_MLP_DOC = "two products, the activation quantized as it is computed"
_QKV_DOC = "the product, then split, rotation and cache writes in one launch"
_NORM_DOC = "the norm quantized as it is computed, then "
_BEHIND = "parts.block."
_NORMED = ("residual", "norm_weight")
KERNELS: tuple[Kernel, ...] = (
    Kernel(
        id="cuda.quantize_activation", op="quantize_activation",
        when=match({**TRITON, "all_of": [_X, {"any_of": _FORMATS}, {"any_of": _GRANULARITIES}]}),
        prepare="phyai_backend_cuda.quantized.activation:prepare", capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True), band=Band.OPTIMIZED,
        doc="one launch; two where one dynamic scale is the whole tensor's",
    ),
    *_rows("gemm", "gemm", "inputs quantized in one launch", _gemm, variants=_FP8),
    *_rows("gated_mlp", "mlp", _MLP_DOC, _mlp(("gate_up", "down"))),
    _fused("gated_mlp", "prepare", _MLP_DOC),
    _fused("rms_norm_add_gated_mlp", "prepare_normed", _NORM_DOC + _MLP_DOC, _BEHIND, _NORMED),
    *_rows(
        "rms_norm_add_gated_mlp", "mlp", _NORM_DOC + _MLP_DOC,
        _mlp(("gate_up", "down"), head=_BEHIND, tensors=("x", *_NORMED, "y")), normed=True,
    ),
    *_rows("mlp", "mlp", _MLP_DOC, _mlp(("fc1", "fc2"), biases=("fc1_bias", "fc2_bias")), variants=_FP8),
    *_rows("qkv_rope_kv_write", "qkv", _QKV_DOC, _qkv()),
    *_rows(
        "rms_norm_add_qkv_rope_kv_write", "qkv", _NORM_DOC + _QKV_DOC,
        _qkv(head=_BEHIND, tensors=_NORMED), normed=True,
    ),
)  # fmt: skip
