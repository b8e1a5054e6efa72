"""``gemm``: FlashInfer's products in BF16, FP8 and FP4.

Scales of quantized weights are kept a second time, in the form in which the library reads them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, PrepareFn, Resources
from phyai.quant.realize.codes import codes_of
from phyai.quant.realize.dequantize import effective_scale
from phyai.quant.realize.quantize import quantize_input, second_scale
from phyai.quant.scheme import TensorQuant
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


def _fp8_tensor(
    backend: str, facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:  # fmt: skip
    from flashinfer import bmm_fp8

    weight, quant, dtype = *_quantized(weights), DTYPES[str(facts["dtype.y"])]
    codes, scale = packed(weight.codes), effective_scale(weight).to(torch.float32, copy=True).reshape(1)
    renew = in_place(weights)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y = place(out, (*x.shape[:-1], len(codes)), dtype, x.device)
        if x.numel():
            rows = x.reshape(-1, x.shape[-1]).float().contiguous()
            if weight.pre_scale is not None:
                rows = rows * weight.pre_scale.float()
            given = quantize_input(rows, quant, weight.input_scale)
            a, flat = given.values.to(CODES[quant.dtype])[None], y.view(1, -1, len(codes))
            bmm_fp8(a, codes.T[None], given.scale.reshape(1), scale, dtype, out=flat, backend=backend)
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


def prepare_fp8_block_sm100(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    from flashinfer.gemm import gemm_fp8_nt_groupwise

    weight, quant, dtype = *_quantized(weights), DTYPES[str(facts["dtype.y"])]
    codes, scale = packed(weight.codes), effective_scale(weight).to(torch.float32, copy=True).contiguous()
    renew = in_place(weights)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        shape = (*x.shape[:-1], len(codes))
        if not x.numel():
            return place(out, shape, dtype, x.device)
        rows = x.reshape(-1, x.shape[-1]).float()
        missing = -len(rows) % 4  # the library asks for a multiple of four rows
        given = quantize_input(torch.nn.functional.pad(rows, (0, 0, 0, missing)).contiguous(), quant)
        y = place(None if missing else out, (len(rows) + missing, len(codes)) if missing else shape, dtype, x.device)
        a, a_scale = given.values.to(torch.float8_e4m3fn), given.scale.contiguous()
        gemm_fp8_nt_groupwise(a, codes, a_scale, scale, "K", out=y.view(-1, len(codes)), backend="cutlass")
        return give(y[: len(rows)].view(shape) if missing else y, out)

    def refresh(new: Mapping[str, Any]) -> None:
        renew(new)
        codes.copy_(weight.codes)
        scale.copy_(effective_scale(weight))

    return Prepared(run, refresh=refresh)


def blocked(scales: torch.Tensor) -> torch.Tensor:
    """E4M3 scales ``[rows, groups]`` as bytes in the 128x4 layout of tcgen05's block scales, zeros beyond them.

    Scale (m, g) lies at ``512 * (m // 128 * G // 4 + g // 4) + m % 32 * 16 + m % 128 // 32 * 4 + g % 4``, where G is
    the number of groups rounded up to four. Source: the CUDA PTX ISA (``tcgen05.mma`` with block scaling).

    >>> scales = torch.arange(256.0).view(64, 4).to(torch.float8_e4m3fn)
    >>> bytes = blocked(scales).flatten()
    >>> blocked(scales).shape, bool((bytes[16:20] == scales.view(torch.uint8)[1]).all()), bytes[4:8].tolist() == (
    ...     scales.view(torch.uint8)[32].tolist())
    (torch.Size([128, 4]), True, True)
    """
    (rows, groups), pad = scales.shape, torch.nn.functional.pad
    padded = pad(scales.view(torch.uint8), (0, -groups % 4, 0, -rows % 128))
    tiles = padded.view(-1, 4, 32, padded.shape[1] // 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(padded.shape).contiguous()


def prepare_nvfp4_cutlass(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    from flashinfer import mm_fp4

    weight, quant, dtype = *_quantized(weights), DTYPES[str(facts["dtype.y"])]
    codes, scales, n = packed(weight.codes), blocked(weight.scale), weight.shape[0]
    renew = in_place(weights)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y = place(out, (*x.shape[:-1], n), dtype, x.device)
        if x.numel():
            rows = x.reshape(-1, x.shape[-1]).float().contiguous()
            second = weight.input_scale if weight.input_scale is not None else second_scale(rows.abs().amax(), quant)
            assert second is not None
            # not nvfp4_quantize: it multiplies by a reciprocal, and rounds ties to other codes
            given = quantize_input(rows, quant, second)
            a, a_scales = codes_of(given.values, quant.dtype), (given.scale.double() / second).to(torch.float8_e4m3fn)
            alpha = (second * weight.second_scale).float().reshape(1)
            mm_fp4(
                a, codes.T, blocked(a_scales), scales.T, alpha, out_dtype=dtype, out=y.view(-1, n), backend="cutlass"
            )  # fmt: skip
        return give(y, out)

    def refresh(new: Mapping[str, Any]) -> None:
        renew(new)
        codes.copy_(weight.codes)
        scales.copy_(blocked(weight.scale))

    return Prepared(run, refresh=refresh)


def prepare_nvfp4_a16_sm100(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    from flashinfer.gemm import mm_bf16_fp4

    weight: QuantizedWeight = weights["weight"]
    dtype, n = DTYPES[str(facts["dtype.y"])], weight.shape[0]
    codes, scales = packed(weight.codes), packed(weight.scale)
    alpha = weight.second_scale.to(torch.float32, copy=True).reshape(1)
    renew = in_place(weights)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y = place(out, (*x.shape[:-1], n), dtype, x.device)
        if x.numel():
            rows = packed(x.reshape(-1, x.shape[-1]))
            mm_bf16_fp4(
                rows, codes, scales, alpha, backend="blackwell-native", out_dtype=dtype, out=y.view(-1, n),
                enable_pdl=False,
            )  # fmt: skip
        return give(y, out)

    def refresh(new: Mapping[str, Any]) -> None:
        renew(new)
        for kept, plain in ((codes, weight.codes), (scales, weight.scale), (alpha, weight.second_scale.reshape(1))):
            kept.copy_(plain)

    return Prepared(run, refresh=refresh)


def _quantized(weights: Mapping[str, Any]) -> tuple[QuantizedWeight, TensorQuant]:
    """The weight, and how its input is quantized."""
    weight: QuantizedWeight = weights["weight"]
    assert weight.scheme.input is not None
    return weight, weight.scheme.input


prepare_bf16: PrepareFn = functools.partial(_bf16, "cublaslt")
prepare_tiny_bf16: PrepareFn = functools.partial(_bf16, "tinygemm")
prepare_cutlass_bf16: PrepareFn = functools.partial(_bf16, "cutlass")
prepare_fp8_tensor: PrepareFn = functools.partial(_fp8_tensor, "cublas")
prepare_cutlass_fp8_tensor: PrepareFn = functools.partial(_fp8_tensor, "cutlass")
