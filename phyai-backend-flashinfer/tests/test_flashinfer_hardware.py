"""What rows claim on each architecture, against what FlashInfer 0.7.4 says of its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.quant.scheme import NVFP4, NVFP4_INPUT, QuantScheme, TensorQuant
from phyai_backend_flashinfer.rows import KERNELS

BY_ID = {kernel.id.removeprefix("flashinfer."): kernel for kernel in KERNELS}
#: Compute capabilities that FlashInfer's lists speak of, and two below.
CAPABILITIES = (70, 75, 80, 86, 87, 89, 90, 100, 103, 107, 110, 120, 121)

ATTENTION = {
    "attrs.causal": False, "attrs.layout": "padded", "shape.B": 1, "shape.Sq": 50, "shape.Sk": 1018, "shape.heads": 8,
    "shape.kv_heads": 1, "shape.head_dim": 256, "shape.T": 50, "shape.pages": 1, "shape.page_size": 1024,
    **{f"dtype.{name}": "bf16" for name in ("q", "k", "v", "o", "k_cache", "v_cache")},
}  # fmt: skip
RAGGED = {**ATTENTION, "attrs.layout": "ragged", "dtype.cu_seqlens_q": "int32", "dtype.cu_seqlens_k": "int32"}
ROWS = {"shape.M": 50, "shape.D": 1024, "dtype.x": "bf16", "dtype.y": "bf16", "dtype.weight": "bf16"}
PRODUCT = {"shape.M": 50, "shape.N": 2560, "shape.K": 1024, "dtype.x": "bf16", "dtype.y": "bf16"}
BF16 = {**PRODUCT, "dtype.weight": "bf16"}


def quantized(weight: TensorQuant, input: TensorQuant | None, **changes: Any) -> dict[str, Any]:
    scheme = QuantScheme(weight, input)
    stored = weight.dtype if weight.bits == 8 else "uint8"
    return {**PRODUCT, "dtype.weight": stored, **scheme.facts(), "quant.layout": "plain", **changes}


E4M3 = TensorQuant("fp8_e4m3", "tensor")
FP8 = quantized(E4M3, TensorQuant("fp8_e4m3", "tensor", dynamic=True))
BLOCKS = TensorQuant("fp8_e4m3", "block", block_shape=(128, 128))
GROUPS = TensorQuant("fp8_e4m3", "group", group_size=128, dynamic=True)
FP8_BLOCK = quantized(BLOCKS, GROUPS)
FP4, FP4_A16 = quantized(NVFP4, NVFP4_INPUT), quantized(NVFP4, None)

FROM_80 = (80, 86, 87, 89, 90, 100, 103, 107, 110, 120, 121)
#: A call of each row, and the capabilities on which the library runs it. Those without a decorator compile for whatever
#: architecture there is: bf16 from sm80 on (``jit/core.py``). The lists of the others are their decorators':
#: ``@supported_compute_capability`` in ``gemm/gemm_base.py`` and ``gemm/gemm_bf16_fp4.py``.
CALLS: Mapping[str, tuple[Mapping[str, Any], tuple[int, ...]]] = {
    "attention_paged.fa2": (ATTENTION, FROM_80),
    "attention_paged.fa3": (ATTENTION, (90,)),  # is_sm90a_supported
    "attention.fa2": (ATTENTION, FROM_80),
    "attention.fa3": (ATTENTION, (90,)),
    "attention.masked_fa2": ({**ATTENTION, "dtype.mask": "bool"}, FROM_80),
    "attention.batch_fa2": (ATTENTION, FROM_80),
    "attention.batch_fa3": (ATTENTION, (90,)),
    "attention.ragged_fa2": (RAGGED, FROM_80),
    "attention.ragged_fa3": (RAGGED, (90,)),
    "rms_norm": ({**ROWS, "attrs.offset": 1}, FROM_80),
    "rms_norm_add": ({**ROWS, "dtype.residual": "bf16", "attrs.offset": 0}, FROM_80),
    "layer_norm": (ROWS, FROM_80),
    "gated_activation": ({**ROWS, "shape.I": 4096, "attrs.activation": "silu"}, FROM_80),
    "rope": (
        {**ATTENTION, "shape.rotary_dim": 256, "dtype.cos_sin": "fp32", "dtype.q_out": "bf16", "dtype.k_out": "bf16"},
        FROM_80,
    ),
    "kv_write": (ATTENTION, FROM_80),
    "gemm.bf16": (BF16, FROM_80),  # _cublaslt_mm_bf16_requirement
    "gemm.tiny_bf16": (BF16, (90, 100, 103, 107, 110, 120, 121)),  # _tinygemm_mm_bf16_requirement
    "gemm.cutlass_bf16": (BF16, (100, 103, 107)),  # _cutlass_mm_bf16_requirement
    "gemm.fp8_tensor": (FP8, (89, 90, 100, 103, 107, 110, 120, 121)),  # _cublas_bmm_fp8_requirement
    # _cutlass_bmm_fp8_requirement, without 120 and 121, which _heuristic_func_bmm_fp8 gives to another kernel
    "gemm.cutlass_fp8_tensor": (FP8, (100, 103, 107, 110)),
    "gemm.fp8_block_sm90": (FP8_BLOCK, (90,)),  # _match_sm_version(input.device, ["90", "90a"])
    # _cutlass_gemm_fp8_nt_groupwise_requirement, without 120 and 121, which get_gemm_sm120_module() runs
    "gemm.fp8_block_sm100": (FP8_BLOCK, (100, 103, 107)),
    "gemm.nvfp4_cutlass": (FP4, (100, 103, 107, 110, 120, 121)),  # _cutlass_gemm_fp4_requirement
    "gemm.nvfp4_a16_sm100": (FP4_A16, (100, 103)),  # _blackwell_bf16_fp4_requirement
}  # fmt: skip


def on(facts: Mapping[str, Any], capability: int = 90, version: str | None = "0.7.4") -> Facts:
    machine = Environment.simulated("h200", libraries=()).facts()
    return machine.replace({"lib.flashinfer": version, **facts, "device.arch": f"sm{capability}"})


def test_every_row_is_here() -> None:
    assert set(CALLS) == set(BY_ID)


@pytest.mark.parametrize("name", CALLS)
def test_a_row_is_claimed_where_the_library_runs_it(name: str) -> None:
    facts, capabilities = CALLS[name]
    claimed = tuple(cc for cc in CAPABILITIES if BY_ID[name].when.holds(on(facts, cc)))
    assert claimed == capabilities


@pytest.mark.parametrize("name", CALLS)
def test_without_the_library_or_with_one_that_is_too_old_a_row_says_so(name: str) -> None:
    facts, capabilities = CALLS[name]
    for version in (None, "0.5.3"):
        reason = BY_ID[name].when.why_not(on(facts, capabilities[-1], version))
        assert reason is not None
        assert "flashinfer" in reason


@pytest.mark.parametrize(
    ("name", "changes", "takes"),
    [
        ("attention.masked_fa2", {"shape.B": 2}, False),
        ("attention.batch_fa2", {"shape.B": 8}, True),
        ("attention.batch_fa2", {"shape.B": 0}, False),
        ("attention.batch_fa2", {"dtype.mask": "bool"}, False),
        ("attention.ragged_fa2", {"attrs.layout": "padded"}, False),
        ("attention.ragged_fa2", {"dtype.cu_seqlens_k": None}, False),
        ("attention.ragged_fa3", {"shape.head_dim": 72}, False),
        # "gamma must be float32", "input must be bfloat16": parameters are copied, inputs are not
        ("layer_norm", {"dtype.weight": "fp32", "dtype.bias": "fp16"}, True),
        ("layer_norm", {"dtype.x": "fp16", "dtype.y": "fp16"}, False),
        ("layer_norm", {"dtype.weight": None}, False),
        # 1024 threads: head_dim / 8 for each head (AppendPagedKVCache in include/flashinfer/page.cuh)
        ("kv_write", {"shape.kv_heads": 32}, True),
        ("kv_write", {"shape.kv_heads": 33}, False),
        ("kv_write", {"shape.head_dim": 64, "shape.kv_heads": 128}, True),
        ("kv_write", {"shape.head_dim": 96}, False),
        # "cuBLASLt fused bias requires bfloat16 output."
        ("gemm.bf16", {"dtype.bias": "bf16"}, True),
        ("gemm.bf16", {"dtype.y": "fp32"}, True),
        ("gemm.bf16", {"dtype.y": "fp32", "dtype.bias": "bf16"}, False),
        ("gemm.bf16", {"dtype.x": "fp16", "dtype.weight": "fp16", "dtype.y": "fp16"}, False),
        ("gemm.tiny_bf16", {"shape.N": 24}, False),
        ("gemm.tiny_bf16", {"shape.K": 96}, False),
        ("gemm.tiny_bf16", {"dtype.y": "fp16"}, False),
        ("gemm.cutlass_bf16", {"dtype.y": "fp32", "shape.N": 12}, True),
        ("gemm.cutlass_bf16", {"shape.N": 12}, False),
        ("gemm.cutlass_bf16", {"dtype.bias": "bf16"}, False),
        # "Unsupported combination: both A and B are e5m2"
        ("gemm.fp8_tensor", {"quant.activation": "fp8_e5m2"}, True),
        ("gemm.fp8_tensor", {"quant.activation": "fp8_e5m2", "quant.weight": "fp8_e5m2"}, False),
        ("gemm.fp8_tensor", {"quant.granularity": "channel"}, False),
        ("gemm.fp8_tensor", {"shape.K": 24}, False),
        ("gemm.cutlass_fp8_tensor", {"quant.activation": "fp8_e5m2"}, False),
        # "K dimension must be divisible by block size (128)", "N dimension must be divisible by 64"
        ("gemm.fp8_block_sm90", {"shape.N": 192}, True),
        ("gemm.fp8_block_sm90", {"shape.N": 96}, False),
        ("gemm.fp8_block_sm90", {"shape.K": 192}, False),
        ("gemm.fp8_block_sm90", {"quant.block_n": 1}, False),
        ("gemm.fp8_block_sm90", {"quant.fields.activation_group_size": "64"}, False),
        ("gemm.fp8_block_sm90", {"dtype.y": "fp16"}, False),  # the binding writes BF16 into whatever it is given
        ("gemm.nvfp4_cutlass", {"shape.K": 48}, False),
        ("gemm.nvfp4_cutlass", {"shape.N": 48}, False),
        ("gemm.nvfp4_a16_sm100", {"shape.K": 48}, True),
        ("gemm.nvfp4_a16_sm100", {"dtype.x": "fp16"}, False),
    ],
)
def test_what_the_library_refuses_is_not_claimed(name: str, changes: Mapping[str, Any], takes: bool) -> None:
    facts, capabilities = CALLS[name]
    assert BY_ID[name].when.holds(on({**facts, **changes}, capabilities[0])) == takes


def test_a_product_of_four_bits_is_claimed_for_its_own_inputs_alone() -> None:
    assert not BY_ID["gemm.nvfp4_cutlass"].when.holds(on(FP4_A16, 100))
    assert not BY_ID["gemm.nvfp4_a16_sm100"].when.holds(on(FP4, 100))
