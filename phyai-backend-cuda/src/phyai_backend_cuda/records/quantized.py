"""The records of the rows with inputs of 8 bits.

Products come twice: ``fast`` ones add up in the tensor cores' own accumulators, of about 14 bits of mantissa, where the
others move partial sums to fp32 every few steps.
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


def fp8(part: str | None, granularities: list[Mapping[str, Any]]) -> dict[str, Any]:
    """FP8 weight and input in the plain layout, with scales of one of ``granularities``."""
    q = "quant" if part is None else f"parts.{part}.quant"
    return {
        f"{q}.layout": "plain",
        f"{q}.weight": "fp8_e4m3",
        f"{q}.activation": "fp8_e4m3",
        f"{q}.scale_dtype": ["fp32", "bf16", "fp16"],
        f"{q}.fields.activation_scale_rule": "amax",
        f"{q}.fields.output": None,
        "all_of": [
            *({f"{q}.{name}": [None, False]} for name in ("second_scale", "g_idx", "pre_scale")),
            {"any_of": [{f"{q}.{name}": value for name, value in case.items()} for case in granularities]},
        ],
    }


def _product(id: str, when: Mapping[str, Any], doc: str) -> list[Kernel]:
    """The row, and the one that accumulates fast."""
    module = f"phyai_backend_cuda.quantized.{id.split('.')[1].removeprefix('gated_')}"
    return [
        Kernel(
            id=id + ("_fast" if fast else ""), op=id.split(".")[1],
            when=match({**TRITON, "device.arch": ">=sm89", **when}), prepare=f"{module}:prepare{'_fast' * fast}",
            capture=Capture.AFTER_WARMUP, numerics=Numerics(reproducible=True, accumulation="fp22" if fast else "fp32"),
            band=Band.OPTIMIZED, rank=-1 if fast else 0, params=(OVERLAP,),
            doc=doc + (", accumulated fast" if fast else ""),
        )
        for fast in (False, True)
    ]  # fmt: skip


_TOKEN: Mapping[str, Any] = {"granularity": ["channel", "tensor"], "activation_granularity": "token"}
BY_ROWS: list[Mapping[str, Any]] = [_TOKEN, {"granularity": "channel", "activation_granularity": "tensor"}]
_BY_TENSOR: Mapping[str, Any] = {"granularity": "tensor", "activation_granularity": "tensor"}
#: What a row of the activation's result can be given while it is held.
_KNOWN: list[Mapping[str, Any]] = [
    _TOKEN,
    {"granularity": ["channel", "tensor"], "activation_granularity": "tensor", "activation_dynamic": False},
]
_GEMM: Mapping[str, Any] = {
    "dtype.x": ["bf16", "fp16", "fp32"], "shape.N": "%16", "shape.K": f"%16,{ROW_LIMIT}",
    "any_of": [
        {**fp8(None, BY_ROWS), "dtype.y": "bf16", "dtype.bias": [None, "bf16"]},
        *({**fp8(None, [_BY_TENSOR]), "dtype.y": dtype, "dtype.bias": [None, dtype]} for dtype in ("bf16", "fp16")),
    ],
}  # fmt: skip


def _mlp(first: str, second: str, biases: Sequence[str] = ()) -> dict[str, Any]:
    return {
        **dict.fromkeys(("dtype.x", "dtype.y"), "bf16"), **{f"dtype.{bias}": [None, "bf16"] for bias in biases},
        "attrs.activation": ACTIVATIONS,
        "shape.K": f"%16,{ROW_LIMIT}", "shape.I": f"%16,{ROW_LIMIT}", "shape.N": "%16",
        "all_of": [fp8(first, [*BY_ROWS, _BY_TENSOR]), fp8(second, _KNOWN)],
    }  # fmt: skip


#: What ``csrc/gated.cu`` was written for: many rows on Hopper.
_GATED: Mapping[str, Any] = {
    **HOPPER, "shape.M": ">=256", "shape.I": f"%128,{ROW_LIMIT}", "attrs.activation": ACTIVATIONS,
    **dict.fromkeys(("dtype.x", "dtype.y"), "bf16"),
}  # fmt: skip
_MLP_DOC = "torch._scaled_mm twice, the activation quantized as it is computed"
KERNELS: tuple[Kernel, ...] = (
    Kernel(
        id="cuda.quantize_activation", op="quantize_activation",
        when=match({**TRITON, "all_of": [_X, {"any_of": _FORMATS}, {"any_of": _GRANULARITIES}]}),
        prepare="phyai_backend_cuda.quantized.activation:prepare", capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True), band=Band.OPTIMIZED,
        doc="one launch; two where one dynamic scale is the whole tensor's",
    ),
    *_product("cuda.gemm.fp8_a8", _GEMM, "inputs quantized in one launch, then torch._scaled_mm"),
    *_product("cuda.gated_mlp.fp8_a8", _mlp("gate_up", "down"), _MLP_DOC),
    Kernel(
        id="cuda.gated_mlp.fp8_a8_fused", op="gated_mlp",
        when=match({
            **TRITON, **_GATED, "shape.K": f"%16,{ROW_LIMIT}", "shape.N": "%16",
            "all_of": [fp8("gate_up", BY_ROWS), fp8("down", [*BY_ROWS, _BY_TENSOR])],
        }),
        prepare="phyai_backend_cuda.gated.mlp:prepare", capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True, accumulation="fp22"), band=Band.OPTIMIZED, rank=-2,
        params=(OVERLAP,),
        doc="first product and activation in one launch, accumulated fast",
    ),
    *_product("cuda.mlp.fp8_a8", _mlp("fc1", "fc2", ("fc1_bias", "fc2_bias")), _MLP_DOC),
)  # fmt: skip
