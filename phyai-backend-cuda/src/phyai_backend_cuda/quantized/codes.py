"""Codes of 8 bits in Triton, of values that a pass has in registers: two bf16 values to a 32-bit word as they are read,
two codes to 16 bits as they are written."""

# ruff: noqa: ANN001, ANN201 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

#: The largest code of every format, which the largest magnitude becomes unless another number is given.
TOP: Mapping[torch.dtype, float] = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


@triton.jit
def scale_of(amax, TOP: tl.constexpr):
    scale = tl.div_rn(amax, TOP)
    return tl.where(scale == 0, 1.0, scale)


@triton.jit
def halves(words):
    """The two bf16 values of each 32-bit word in fp32, the first one first."""
    return (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)


@triton.jit
def rounded(first, second, COMPILED: tl.constexpr):
    """Pairs rounded to bf16, as the chain of ops has them: then the codes are the chain's."""
    if COMPILED:  # Triton's own conversion takes one value at a time, at an eighth of the rate
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [first, second], dtype=tl.int32, is_pure=True, pack=1
        )
    low, high = first.to(tl.bfloat16).to(tl.uint16, bitcast=True), second.to(tl.bfloat16).to(tl.uint16, bitcast=True)
    return (low.to(tl.uint32) | (high.to(tl.uint32) << 16)).to(tl.int32, bitcast=True)


@triton.jit
def codes_of(first, second, TOP: tl.constexpr, COMPILED: tl.constexpr):
    """Pairs of codes of scaled values: of int8 where TOP is below 128, else of e4m3, where a NaN stays one."""
    if TOP < 128.0:  # 1.5 · 2^23 and a number end in the nearest integer, ties to even
        low = (tl.clamp(first, -128.0, 127.0) + 12582912.0).to(tl.int32, bitcast=True)
        high = (tl.clamp(second, -128.0, 127.0) + 12582912.0).to(tl.int32, bitcast=True)
        return ((low & 255) | (high << 8)).to(tl.int16)
    if COMPILED:
        return tl.inline_asm_elementwise(
            "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;", "=h,f,f", [first, second], dtype=tl.int16, is_pure=True, pack=1
        )
    low = tl.clamp(first, -TOP, TOP, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    high = tl.clamp(second, -TOP, TOP, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return (low.to(tl.uint16) | (high.to(tl.uint16) << 8)).to(tl.int16, bitcast=True)


@triton.jit
def put(
    first, second, given, codes, scales, row, d, width, keep, TOP: tl.constexpr, FROM: tl.constexpr,
    PER_ROW: tl.constexpr, COMPILED: tl.constexpr,
):  # fmt: skip
    """Write the codes of one row's values, ``first`` and ``second`` of each pair ``d``, and its scale: that of the
    ``row``, or ``given``. Where it is only known ``later``, write the values in bf16 and the row's largest magnitude.

    Values are multiplied by the scale's inverse: one division a row, not one for each.
    """
    words = rounded(first, second, COMPILED)
    first, second = halves(words)
    at = row.to(tl.int64) * width + d
    if FROM == "later":
        tl.store(codes + at, words, keep)
        tl.store(scales + row, tl.max(tl.maximum(tl.abs(first), tl.abs(second)), 0))
    else:
        if FROM == "given":
            scale = tl.load(given)
        else:
            scale = scale_of(tl.max(tl.maximum(tl.abs(first), tl.abs(second)), 0), TOP)
        # at most the largest number: of a scale next to zero it would be infinite, and zeros would become NaN
        inverse = tl.minimum(tl.div_rn(1.0, scale), 3.4028234663852886e38)
        tl.store(codes + at, codes_of(first * inverse, second * inverse, TOP, COMPILED), keep)
        if PER_ROW:
            tl.store(scales + row, scale)
        elif row == 0:
            tl.store(scales, scale)


def destination(codes: torch.Tensor, given: torch.Tensor | None) -> tuple[torch.Tensor, str]:
    """Where :func:`put` writes, and what its scale comes from, for contiguous ``codes``, or values in bf16."""
    if codes.dtype is torch.bfloat16:
        return codes.view(torch.int32), "later"
    return codes.view(torch.int16), "row" if given is None else "given"
