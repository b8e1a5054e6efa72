"""Products, in BF16, FP8 and FP4. Where torch has a product as well, its own was as fast or faster: those come last.

FlashInfer's calls keep scratch of their own, cached per stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.kernel import Band, Kernel
from phyai.predicates import match

from phyai_backend_flashinfer.rows.conditions import READ, row

#: ``@supported_compute_capability`` of each call's backend (flashinfer/gemm/gemm_base.py, gemm_bf16_fp4.py).
CUBLASLT_BF16 = [f"sm{cc}" for cc in (80, 86, 87, 89, 90, 100, 103, 107, 110, 120, 121)]
CUTLASS_BF16 = [f"sm{cc}" for cc in (100, 103, 107)]
TINYGEMM = [f"sm{cc}" for cc in (90, 100, 103, 107, 110, 120, 121)]
CUTLASS_FP8 = [f"sm{cc}" for cc in (100, 103, 107, 110)]  # 120 and 121 have another kernel, in blocks
GROUPWISE_FP8 = [f"sm{cc}" for cc in (100, 103, 107)]
CUTLASS_FP4 = [f"sm{cc}" for cc in (100, 103, 107, 110, 120, 121)]
BLACKWELL_BF16_FP4 = ["sm100", "sm103"]
CUBLAS_FP8 = [f"sm{cc}" for cc in (89, 90, 100, 103, 107, 110, 120, 121)]

#: cuBLASLt adds a bias to BF16 results alone.
_OUTPUTS = [{"dtype.y": "bf16", "dtype.bias": [None, "bf16"]}, {"dtype.y": ["fp16", "fp32"], "dtype.bias": None}]
_BF16: Mapping[str, Any] = {
    **READ, "device.arch": CUBLASLT_BF16, "quant.scheme": None, "dtype.x": "bf16", "dtype.weight": "bf16",
    "any_of": _OUTPUTS,
}  # fmt: skip

_TINY_BF16: Mapping[str, Any] = {
    **_BF16, "device.arch": TINYGEMM, "shape.N": "%16", "shape.K": "%64", "any_of": _OUTPUTS[:1],
}  # fmt: skip
#: Rows of every operand begin at a multiple of 16 bytes.
_CUTLASS_BF16: Mapping[str, Any] = {
    **_BF16, "device.arch": CUTLASS_BF16, "shape.K": "%8", "dtype.bias": None,
    "any_of": [{"dtype.y": ["bf16", "fp16"], "shape.N": "%8"}, {"dtype.y": "fp32", "shape.N": "%4"}],
}  # fmt: skip

#: cuBLAS has no product of two e5m2 operands.
_FP8_CODES = [
    {"quant.weight": "fp8_e4m3", "quant.activation": ["fp8_e4m3", "fp8_e5m2"]},
    {"quant.weight": "fp8_e5m2", "quant.activation": "fp8_e4m3"},
]
_FP8_TENSOR: Mapping[str, Any] = {
    **READ, "device.arch": CUBLAS_FP8, "quant.layout": "plain",
    "quant.granularity": "tensor", "quant.activation_granularity": "tensor", "quant.fields.output": None,
    "dtype.x": ["bf16", "fp16", "fp32"], "dtype.y": ["bf16", "fp16"], "dtype.bias": None,
    "shape.N": "%16", "shape.K": "%16", "any_of": _FP8_CODES,
}  # fmt: skip
_CUTLASS_FP8: Mapping[str, Any] = {
    **_FP8_TENSOR, "device.arch": CUTLASS_FP8, "shape.N": "%8", "quant.weight": "fp8_e4m3",
    "quant.activation": "fp8_e4m3",
}  # fmt: skip
#: What ``torch.gemm.fp8_tensor`` leaves: ModelOpt's way to compute scales, and e5m2.
_NOT_TORCHS = match({
    "any_of": [
        {"quant.fields.activation_scale_rule": "*", "none_of": [{"quant.fields.activation_scale_rule": "amax"}]},
        {"quant.weight": "fp8_e5m2"}, {"quant.activation": "fp8_e5m2"},
    ],
})  # fmt: skip

_FP8_BLOCK: Mapping[str, Any] = {
    **READ, "quant.layout": "plain", "quant.fields.output": None,
    "quant.weight": "fp8_e4m3", "quant.granularity": "block", "quant.block_n": 128, "quant.block_k": 128,
    "quant.activation": "fp8_e4m3", "quant.activation_granularity": "group", "quant.activation_dynamic": True,
    "quant.fields.activation_group_size": "128", "quant.fields.activation_scale_rule": "amax",
    "quant.pre_scale": [None, False], "dtype.bias": None, "shape.K": "%128",
}  # fmt: skip
_FP8_BLOCK_SM90: Mapping[str, Any] = {
    **_FP8_BLOCK, "device.arch": "sm90", "dtype.x": "bf16", "dtype.y": "bf16", "shape.N": "%64",
}  # fmt: skip
_FP8_BLOCK_SM100: Mapping[str, Any] = {
    **_FP8_BLOCK, "device.arch": GROUPWISE_FP8, "dtype.x": ["bf16", "fp16", "fp32"], "dtype.y": ["bf16", "fp16"],
    "shape.N": "%128",
}  # fmt: skip

_NVFP4: Mapping[str, Any] = {
    **READ, "quant.layout": "plain", "quant.format": "nvfp4", "quant.second_scale": True, "quant.g_idx": [None, False],
    "quant.pre_scale": [None, False], "quant.fields.output": None, "dtype.y": ["bf16", "fp16"], "dtype.bias": None,
}  # fmt: skip
_NVFP4_A4: Mapping[str, Any] = {
    **_NVFP4, "device.arch": CUTLASS_FP4, "quant.activation": "fp4_e2m1", "quant.activation_dynamic": True,
    "quant.fields.activation_format": "nvfp4", "quant.fields.activation_scale_rule": "amax",
    "dtype.x": ["bf16", "fp16", "fp32"], "shape.N": "%32", "shape.K": "%32",
}  # fmt: skip
_NVFP4_A16: Mapping[str, Any] = {
    **_NVFP4, "device.arch": BLACKWELL_BF16_FP4, "quant.activation": None, "dtype.x": "bf16", "shape.K": "%16",
}  # fmt: skip

_NEVER_RUN = "written from the library's sources, never run"

KERNELS: tuple[Kernel, ...] = (
    row("flashinfer.gemm.bf16", _BF16, "gemm:prepare_bf16", batch_invariant=False, band=Band.REFERENCE,
        bands={Band.GENERAL: match({"dtype.y": ["fp16", "fp32"]})},  # torch's results have the dtype of x
        doc="mm_bf16 through cuBLASLt, as torch calls it: the same times within 2 % at the sizes measured"),
    row("flashinfer.gemm.tiny_bf16", _TINY_BF16, "gemm:prepare_tiny_bf16", batch_invariant=False, band=Band.REFERENCE,
        rank=1, doc="mm_bf16 through TinyGEMM, made for up to eight rows; 1.7 to 33 times cuBLAS from 50 rows on"),
    row("flashinfer.gemm.fp8_tensor", _FP8_TENSOR, "gemm:prepare_fp8_tensor", batch_invariant=False,
        accumulation="fp22", band=Band.REFERENCE, bands={Band.GENERAL: _NOT_TORCHS},
        doc="bmm_fp8 through cuBLASLt, accumulated fast; inputs are quantized by torch"),
    # tiles are chosen and compiled by the number of rows
    row("flashinfer.gemm.fp8_block_sm90", _FP8_BLOCK_SM90, "gemm:prepare_fp8_block_sm90", batch_invariant=False,
        band=Band.GENERAL, specializes_on=("shape.M",),
        doc="fp8_blockscale_gemm_sm90 (DeepGEMM), which quantizes its inputs by 448 / amax: codes may differ at ties"),
    row("flashinfer.gemm.cutlass_bf16", _CUTLASS_BF16, "gemm:prepare_cutlass_bf16", batch_invariant=False,
        band=Band.REFERENCE, rank=2, bands={Band.GENERAL: match({"dtype.y": ["fp16", "fp32"]})},
        doc=f"mm_bf16 through CUTLASS; {_NEVER_RUN}"),
    row("flashinfer.gemm.cutlass_fp8_tensor", _CUTLASS_FP8, "gemm:prepare_cutlass_fp8_tensor", batch_invariant=False,
        band=Band.REFERENCE, rank=1, bands={Band.GENERAL: _NOT_TORCHS},
        doc=f"bmm_fp8 through CUTLASS; inputs are quantized by torch; {_NEVER_RUN}"),
    row("flashinfer.gemm.fp8_block_sm100", _FP8_BLOCK_SM100, "gemm:prepare_fp8_block_sm100", batch_invariant=False,
        band=Band.GENERAL, doc=f"gemm_fp8_nt_groupwise (CUTLASS); inputs are quantized by torch; {_NEVER_RUN}"),
    row("flashinfer.gemm.nvfp4_cutlass", _NVFP4_A4, "gemm:prepare_nvfp4_cutlass", batch_invariant=False,
        band=Band.GENERAL, doc=f"mm_fp4 through CUTLASS; inputs are quantized by torch; {_NEVER_RUN}"),
    row("flashinfer.gemm.nvfp4_a16_sm100", _NVFP4_A16, "gemm:prepare_nvfp4_a16_sm100", batch_invariant=False,
        band=Band.GENERAL, specializes_on=("shape.M",),  # the program is chosen by the number of rows
        doc=f"mm_bf16_fp4, blackwell-native: weights of four bits, inputs of sixteen; {_NEVER_RUN}"),
)  # fmt: skip
