"""RMS norms that are quantized as they are computed, in Triton: see :mod:`phyai_backend_cuda.quantized.codes`."""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
import triton
import triton.language as tl

from phyai_backend_cuda.quantized.codes import TOP, destination, halves, put, rounded
from phyai_backend_cuda.triton_rows.common import wait_previous, warps


@triton.jit
def _norm_quantize(
    x, residual, weight, given, codes, scales, x_step, residual_step, eps, offset, width: tl.constexpr,
    TOP: tl.constexpr, FROM: tl.constexpr, PER_ROW: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
    COMPILED: tl.constexpr,
):  # fmt: skip
    """One row: its sum with the residual, written there, normalized and quantized. All but scales are of two elements
    each. ``FROM`` is that of :func:`~phyai_backend_cuda.quantized.codes.put`."""
    wait_previous(OVERLAP)
    row, d = tl.program_id(0), tl.arange(0, BLOCK)
    keep = d < width
    added = residual + row.to(tl.int64) * residual_step + d
    first, second = halves(tl.load(x + row.to(tl.int64) * x_step + d, keep, 0))
    more, more_second = halves(tl.load(added, keep, 0))
    factor, factor_second = halves(tl.load(weight + d, keep, 0))
    first += more
    second += more_second
    tl.store(added, rounded(first, second, COMPILED), keep)
    inverse = tl.rsqrt(tl.sum(first * first + second * second, 0) / (2 * width) + eps)
    first *= inverse
    second *= inverse
    first *= offset + factor
    second *= offset + factor_second
    put(first, second, given, codes, scales, row, d, width, keep, TOP, FROM, PER_ROW, COMPILED)


def norm_quantize(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, *,
    eps: float, offset: float, given: torch.Tensor | None = None, top: float | None = None,
    options: Mapping[str, bool] = MappingProxyType({}),
) -> None:  # fmt: skip
    """``residual += x`` in one launch with ``codes [M, K]`` (int8, or FP8 e4m3) and ``scales`` of its RMS norm.

    ``x``, ``residual`` and ``weight [K]`` are bf16; rows have no gaps and begin at a multiple of 4 bytes, codes are
    contiguous, and K is even. ``given``, ``top`` and ``options`` are as in
    :func:`~phyai_backend_cuda.quantized.kernels.quantize`. Where ``codes`` are bf16, they are the norm's values, and
    ``scales [M]`` the largest magnitude of each row.
    """
    rows, width = codes.shape
    words, sums, factors = (t.view(torch.int32) for t in (x, residual, weight))
    pairs, from_ = destination(codes, given)
    block = triton.next_power_of_2(width // 2)
    _norm_quantize[(rows,)](
        words, sums, factors, given, pairs, scales, words.stride(0), sums.stride(0), eps, offset, width // 2,
        top or TOP.get(codes.dtype, 0.0), from_, len(scales) == rows, block, bool(options),
        isinstance(_norm_quantize, triton.JITFunction), num_warps=warps(2 * block), **options,
    )  # fmt: skip
