"""``gemm``: FlashInfer's products in BF16 and FP8."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, PrepareFn, Resources
from phyai.quant.realize.dequantize import effective_scale
from phyai.quant.realize.quantize import quantize_input
from phyai.quant.weight import QuantizedWeight
from phyai.refresh import in_place

from phyai_backend_flashinfer.memory import give, held, packed, place

DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
CODES: Mapping[str, torch.dtype] = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def _bf16(
    backend: str, facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:  # fmt: skip
    from flashinfer import mm_bf16

    kept, dtype = held(weights), DTYPES[str(facts["dtype.y"])]
    weight, bias = kept["weight"], kept.get("bias")

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y = place(out, (*x.shape[:-1], len(weight)), dtype, x.device)
        if x.numel():
            rows, flat = packed(x.reshape(-1, x.shape[-1])), y.view(-1, len(weight))
            mm_bf16(rows, weight.T, bias, out=flat, out_dtype=dtype, backend=backend)
        return give(y, out)

    return Prepared(run, refresh=in_place(kept))


prepare_bf16: PrepareFn = functools.partial(_bf16, "cublaslt")
prepare_tiny_bf16: PrepareFn = functools.partial(_bf16, "tinygemm")


def prepare_fp8_tensor(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    from flashinfer import bmm_fp8

    weight: QuantizedWeight = weights["weight"]
    quant, dtype = weight.scheme.input, DTYPES[str(facts["dtype.y"])]
    assert quant is not None
    codes, stored = packed(weight.codes), CODES[quant.dtype]
    scale = effective_scale(weight).to(torch.float32, copy=True).reshape(1)
    renew = in_place(weights)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y = place(out, (*x.shape[:-1], len(codes)), dtype, x.device)
        if x.numel():
            rows = x.reshape(-1, x.shape[-1]).float().contiguous()
            if weight.pre_scale is not None:
                rows = rows * weight.pre_scale.float()
            given = quantize_input(rows, quant, weight.input_scale)
            a, flat = given.values.to(stored)[None], y.view(1, -1, len(codes))
            bmm_fp8(a, codes.T[None], given.scale.reshape(1), scale, dtype, out=flat, backend="cublas")
        return give(y, out)

    def refresh(new: Mapping[str, Any]) -> None:
        renew(new)
        codes.copy_(weight.codes)
        scale.copy_(effective_scale(weight).reshape(1))

    return Prepared(run, refresh=refresh)


def prepare_fp8_block_sm90(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    from flashinfer.gemm import fp8_blockscale_gemm_sm90

    weight: QuantizedWeight = weights["weight"]
    codes, scale = packed(weight.codes), effective_scale(weight).to(torch.float32, copy=True).contiguous()
    renew = in_place(weights)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y = place(out, (*x.shape[:-1], len(codes)), torch.bfloat16, x.device)
        if x.numel():
            rows = packed(x.reshape(-1, x.shape[-1]))
            fp8_blockscale_gemm_sm90(rows, codes, weight_scale=scale, out=y.view(-1, len(codes)))
        return give(y, out)

    def refresh(new: Mapping[str, Any]) -> None:
        renew(new)
        codes.copy_(weight.codes)
        scale.copy_(effective_scale(weight))

    return Prepared(run, refresh=refresh)
