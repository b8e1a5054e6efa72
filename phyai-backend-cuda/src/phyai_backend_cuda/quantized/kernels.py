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

import torch
import triton
import triton.language as tl
from phyai.kernel import Resources

from phyai_backend_cuda.triton_rows.common import rows_of, settle, warps

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
    PER_ROW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """``FROM``: the scale is that of the ``row``, ``given``, or that of the largest of PARTS ``partial`` maxima."""
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
def _activate_quantize(
    x, row_scale, column_scale, given, codes, scales, x_step, width: tl.constexpr, KIND: tl.constexpr,
    GATED: tl.constexpr, TOP: tl.constexpr, SCALED: tl.constexpr, STATIC: tl.constexpr, PER_ROW: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One row, activated, times its second half where GATED, quantized. ``SCALED``: x is still to be scaled."""
    row, d = tl.program_id(0), tl.arange(0, BLOCK)
    keep = d < width
    at = x + row.to(tl.int64) * x_step + d
    v = tl.load(at, keep, 0.0).to(tl.float32)
    if GATED:
        up = tl.load(at + width, keep, 0.0).to(tl.float32)
    if SCALED:
        whole = tl.load(row_scale + row)
        v *= whole * tl.load(column_scale + d, keep, 0.0)
        if GATED:
            up *= whole * tl.load(column_scale + width + d, keep, 0.0)
    if KIND == "silu":
        v *= tl.sigmoid(v)
    elif KIND == "gelu":
        v *= 0.5 * (1 + tl.erf(v * 0.7071067811865476))
    else:  # gelu_tanh: (1 + tanh(u)) / 2 = sigmoid(2u)
        v *= tl.sigmoid(1.5957691216057308 * (v + 0.044715 * v * v * v))
    if GATED:
        v *= up
    v = v.to(tl.bfloat16).to(tl.float32)  # as the chain of ops has it: then the codes are the chain's
    scale = tl.load(given) if STATIC else _scale_of(tl.max(tl.abs(v), 0), TOP)
    tl.store(codes + row.to(tl.int64) * width + d, _encode(tl.div_rn(v, scale), codes, TOP), keep)
    if PER_ROW:
        tl.store(scales + row, scale)
    elif row == 0:
        tl.store(scales, scale)


def quantize(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, *, given: torch.Tensor | None = None,
    partial: bool = False, resources: Resources | None = None,
) -> None:  # fmt: skip
    """Write ``codes [M, K]`` of ``x [M, K]`` and contiguous ``scales``: one of every row, or one.

    ``given`` is a static scale ``[1]`` (float32); with ``partial`` the scale follows from all of x, which takes a
    launch more and a buffer of ``resources``; else each row has its own.
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
        parts, num_warps=warps(together * block),
    )  # fmt: skip
    settle(codes, written)


def activate_quantize(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, activation: str, *, gated: bool,
    given: torch.Tensor | None = None, row_scale: torch.Tensor | None = None,
    column_scale: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Write ``codes [M, I]`` and ``scales`` of the activation of ``x``, in one launch.

    ``x`` is ``[M, I]``, or ``[M, 2·I]`` (gate, then up) where ``gated``. All are contiguous. ``given`` is as in
    :func:`quantize`. With ``row_scale [M]`` and one ``column_scale`` for each column, x is multiplied by both first.
    """
    rows, width = codes.shape
    block = triton.next_power_of_2(width)
    _activate_quantize[(rows,)](
        x, row_scale, column_scale, given, codes, scales, x.stride(0), width, activation, gated, TOP[codes.dtype],
        row_scale is not None, given is not None, len(scales) == rows, block, num_warps=warps(block),
    )  # fmt: skip
