"""Activations that are quantized as they are computed, in Triton: see :mod:`phyai_backend_cuda.quantized.codes`."""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
import triton
import triton.language as tl

from phyai_backend_cuda.quantized.codes import TOP, destination, halves, put
from phyai_backend_cuda.triton_rows.common import wait_previous, warps


@triton.jit
def _sigmoid2(v, COMPILED: tl.constexpr):
    """1 / (1 + 2^-v), to about two units in the last place."""
    if COMPILED:  # without the cases of subnormal numbers, which are half of the instructions
        power = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [-v], dtype=tl.float32, is_pure=True, pack=1
        )
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + power], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 / (1.0 + tl.exp2(-v))


@triton.jit
def _activated(v, KIND: tl.constexpr, COMPILED: tl.constexpr):
    if KIND == "silu":
        return v * _sigmoid2(1.4426950408889634 * v, COMPILED)
    if KIND == "gelu":
        return v * (0.5 + 0.5 * tl.erf(v * 0.7071067811865476))
    # gelu_tanh: (1 + tanh(u)) / 2 = sigmoid(2u)
    return v * _sigmoid2(v * (2.302208198144325 + 0.1029432395800235 * v * v), COMPILED)


@triton.jit
def _activate_quantize(
    x, given, codes, scales, x_step, width: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr, TOP: tl.constexpr,
    FROM: tl.constexpr, PER_ROW: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr, COMPILED: tl.constexpr,
):  # fmt: skip
    """One row, activated, times its second half where GATED, quantized: x and codes are of two elements each.
    ``FROM`` is that of :func:`~phyai_backend_cuda.quantized.codes.put`.

    A row stays in registers as it was read: two programs of 16,384 elements fit on a multiprocessor, one reads while
    the other computes. Values are multiplied by the scale's inverse: one division a row, not one for each.
    """
    wait_previous(OVERLAP)
    row, d = tl.program_id(0), tl.arange(0, BLOCK)
    keep = d < width
    at = x + row.to(tl.int64) * x_step + d
    words = tl.load(at, keep, 0)
    if GATED:
        others = tl.load(at + width, keep, 0)
    first, second = halves(words)
    first, second = _activated(first, KIND, COMPILED), _activated(second, KIND, COMPILED)
    if GATED:
        up, up_second = halves(others)
        first *= up
        second *= up_second
    put(first, second, given, codes, scales, row, d, width, keep, TOP, FROM, PER_ROW, COMPILED)


def activate_quantize(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, activation: str, *, gated: bool,
    given: torch.Tensor | None = None, top: float | None = None,
    options: Mapping[str, bool] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Write ``codes [M, I]`` (int8, or FP8 e4m3) and ``scales`` of the activation of ``x`` (bf16), in one launch.

    ``x`` is ``[M, I]``, or ``[M, 2·I]`` (gate, then up) where ``gated``. All are contiguous, and I is even. ``given``,
    ``top`` and ``options`` are as in :func:`~phyai_backend_cuda.quantized.kernels.quantize`. Where ``codes`` are bf16,
    they are the activation's values, and ``scales [M]`` the largest magnitude of each row.
    """
    rows, width = codes.shape
    words, pairs, from_ = x.view(torch.int32), *destination(codes, given)
    block = triton.next_power_of_2(width // 2)
    _activate_quantize[(rows,)](
        words, given, pairs, scales, words.stride(0), width // 2, activation, gated, top or TOP.get(codes.dtype, 0.0),
        from_, len(scales) == rows, block, bool(options),
        isinstance(_activate_quantize, triton.JITFunction), num_warps=warps(2 * block), **options,
    )  # fmt: skip
