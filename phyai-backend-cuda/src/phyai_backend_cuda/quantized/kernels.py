"""Quantization of activations in Triton: what one program does to its rows, and the launches.

::

    amax = abs(x).amax(over what shares a scale)
    scale = amax / top                                     # 1 where that is 0; or given
    codes = (x / scale).clamp(-top, top)                   # to the nearest code, ties to even

with correctly rounded divisions, so that codes and scales are the reference's bit for bit.
"""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
import triton
import triton.language as tl
from phyai.kernel import Resources

from phyai_backend_cuda.runtime.memory import rows_of, settle
from phyai_backend_cuda.triton_rows.common import wait_previous, warps

#: The largest code of every format.
TOP: Mapping[torch.dtype, float] = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
#: Elements of a program's tile, where a row is shorter.
TILE = 1024
#: Partial maxima of a tensor, at most.
PARTS = 1024


@triton.jit
def _scale_of(amax, TOP: tl.constexpr):
    scale = tl.div_rn(amax, TOP)
    return tl.where(scale == 0, 1.0, scale)


@triton.jit
def _encode(v, codes, TOP: tl.constexpr):
    """The codes of scaled values: a NaN stays one."""
    v = tl.clamp(v, -TOP, TOP, propagate_nan=tl.PropagateNan.ALL)
    if codes.dtype.element_ty == tl.int8:
        v = (v + 12582912.0) - 12582912.0  # 1.5 · 2^23: what is left is the nearest integer, ties to even
    return v.to(codes.dtype.element_ty)


@triton.jit
def _quantize(
    x, given, codes, scales, M, x_step, codes_step, K: tl.constexpr, TOP: tl.constexpr, FROM: tl.constexpr,
    PER_ROW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """``FROM``: the scale is that of the ``row``, ``given``, or that of the largest of PARTS ``partial`` maxima."""
    wait_previous(OVERLAP)
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = (r < M)[:, None] & (k < K)[None, :]
    row = r.to(tl.int64)[:, None]
    v = tl.load(x + row * x_step + k[None, :], keep, 0.0).to(tl.float32)
    if FROM == "row":
        scale = _scale_of(tl.max(tl.abs(v), 1), TOP)
    else:
        if FROM == "partial":
            one = _scale_of(tl.max(tl.load(given + tl.arange(0, PARTS)), 0), TOP)
        else:
            one = tl.load(given)
        scale = tl.zeros((ROWS,), tl.float32) + one
    tl.store(codes + row * codes_step + k[None, :], _encode(tl.div_rn(v, scale[:, None]), codes, TOP), keep)
    if PER_ROW:
        tl.store(scales + r, scale, (r < M) & (tl.program_id(1) == 0))
    else:
        tl.store(scales + r * 0, scale, (r == 0) & (tl.program_id(1) == 0))


@triton.jit
def _largest(x, parts, M, x_step, K: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Partial maxima of magnitudes: each program reads STEPS rows."""
    k = tl.arange(0, BLOCK)
    amax = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        row = tl.program_id(0).to(tl.int64) * STEPS + step
        for start in range(0, K, BLOCK):
            keep = (start + k < K) & (row < M)
            amax = tl.maximum(amax, tl.abs(tl.load(x + row * x_step + start + k, keep, 0.0).to(tl.float32)))
    tl.store(parts + tl.program_id(0), tl.max(amax, 0))


@triton.jit
def _halves(words):
    """The two bf16 values of each 32-bit word in fp32, the first one first."""
    return (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _rounded(first, second, COMPILED: tl.constexpr):
    """Pairs rounded to bf16, as the chain of ops has them: then the codes are the chain's."""
    if COMPILED:  # Triton's own conversion takes one value at a time, at an eighth of the rate
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [first, second], dtype=tl.int32, is_pure=True, pack=1
        )
    low, high = first.to(tl.bfloat16).to(tl.uint16, bitcast=True), second.to(tl.bfloat16).to(tl.uint16, bitcast=True)
    return (low.to(tl.uint32) | (high.to(tl.uint32) << 16)).to(tl.int32, bitcast=True)


@triton.jit
def _codes(first, second, TOP: tl.constexpr, COMPILED: tl.constexpr):
    """Pairs of e4m3 codes of scaled values; a NaN stays one."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;", "=h,f,f", [first, second], dtype=tl.int16, is_pure=True, pack=1
        )
    low = tl.clamp(first, -TOP, TOP, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    high = tl.clamp(second, -TOP, TOP, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return (low.to(tl.uint16) | (high.to(tl.uint16) << 8)).to(tl.int16, bitcast=True)


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
    STATIC: tl.constexpr, PER_ROW: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr, COMPILED: tl.constexpr,
):  # fmt: skip
    """One row, activated, times its second half where GATED, quantized: x and codes are of two elements each.

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
    first, second = _halves(words)
    first, second = _activated(first, KIND, COMPILED), _activated(second, KIND, COMPILED)
    if GATED:
        up, up_second = _halves(others)
        first *= up
        second *= up_second
    first, second = _halves(_rounded(first, second, COMPILED))
    scale = tl.load(given) if STATIC else _scale_of(tl.max(tl.maximum(tl.abs(first), tl.abs(second)), 0), TOP)
    inverse = tl.div_rn(1.0, scale)
    pairs = _codes(first * inverse, second * inverse, TOP, COMPILED)
    tl.store(codes + row.to(tl.int64) * width + d, pairs, keep)
    if PER_ROW:
        tl.store(scales + row, scale)
    elif row == 0:
        tl.store(scales, scale)


def quantize(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, *, given: torch.Tensor | None = None,
    partial: bool = False, resources: Resources | None = None, options: Mapping[str, bool] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Write ``codes [M, K]`` of ``x [M, K]`` and contiguous ``scales``: one of every row, or one.

    ``given`` is a static scale ``[1]`` (float32); with ``partial`` the scale follows from all of x, which takes a
    launch more and a buffer of ``resources``; else each row has its own. ``options`` are those of
    :func:`~phyai_backend_cuda.triton_rows.common.overlapping`.
    """
    x, written = rows_of(x), rows_of(codes)
    rows, k = x.shape
    parts, top = 1, TOP[codes.dtype]
    if partial:
        assert resources is not None
        steps, block = triton.next_power_of_2(triton.cdiv(rows, PARTS)), min(triton.next_power_of_2(k), TILE)
        parts = triton.next_power_of_2(triton.cdiv(rows, steps))
        given = resources.workspace("cuda.quantize.parts", PARTS * 4).view(torch.float32)
        _largest[(parts,)](x, given, rows, x.stride(0), k, steps, block, num_warps=warps(block))
    whole = triton.next_power_of_2(k)
    block = whole if given is None else min(whole, 2 * TILE)
    together = max(1, TILE // block)
    _quantize[(triton.cdiv(rows, together), triton.cdiv(k, block))](
        x, given, written, scales, rows, x.stride(0), written.stride(0), k, top,
        "partial" if partial else "row" if given is None else "given", len(scales) == rows, together, block,
        parts, bool(options), num_warps=warps(together * block), **options,
    )  # fmt: skip
    settle(codes, written)


def activate_quantize(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, activation: str, *, gated: bool,
    given: torch.Tensor | None = None, options: Mapping[str, bool] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Write ``codes [M, I]`` (FP8, e4m3) and ``scales`` of the activation of ``x`` (bf16), in one launch.

    ``x`` is ``[M, I]``, or ``[M, 2·I]`` (gate, then up) where ``gated``. All are contiguous, and I is even. ``given``
    and ``options`` are as in :func:`quantize`.
    """
    rows, width = codes.shape
    words, pairs = x.view(torch.int32), codes.view(torch.int16)
    block = triton.next_power_of_2(width // 2)
    _activate_quantize[(rows,)](
        words, given, pairs, scales, words.stride(0), width // 2, activation, gated, TOP[codes.dtype],
        given is not None, len(scales) == rows, block, bool(options),
        isinstance(_activate_quantize, triton.JITFunction), num_warps=warps(2 * block), **options,
    )  # fmt: skip
