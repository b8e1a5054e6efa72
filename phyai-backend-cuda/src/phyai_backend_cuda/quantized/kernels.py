"""Quantization of activations in Triton: what one program does to its rows, and the launches.

::

    amax = abs(x).amax(over what shares a scale)
    scale = amax / top                                     # 1 where that is 0; or given
    codes = (x / scale).clamp(low, high)                   # to the nearest code, ties to even

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

from phyai_backend_cuda.quantized.codes import TOP, scale_of
from phyai_backend_cuda.runtime.memory import rows_of, settle
from phyai_backend_cuda.triton_rows.common import wait_previous, warps

#: Elements of a program's tile, where a row is shorter.
TILE = 1024
#: Partial maxima of a tensor, at most.
PARTS = 1024


@triton.jit
def _encode(v, codes, LOW: tl.constexpr, HIGH: tl.constexpr):
    """The codes of scaled values: a NaN stays one."""
    v = tl.clamp(v, LOW, HIGH, propagate_nan=tl.PropagateNan.ALL)
    if codes.dtype.element_ty == tl.int8:
        v = (v + 12582912.0) - 12582912.0  # 1.5 · 2^23: what is left is the nearest integer, ties to even
    return v.to(codes.dtype.element_ty)


@triton.jit
def _quantize(
    x, given, codes, scales, M, x_step, codes_step, K: tl.constexpr, TOP: tl.constexpr, LOW: tl.constexpr,
    HIGH: tl.constexpr, FROM: tl.constexpr, PER_ROW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, parts,
    PARTS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """``FROM``: the scale is that of the ``row``, ``given``, or that of the largest of ``partial`` maxima: ``parts`` of
    them, at most PARTS."""
    wait_previous(OVERLAP)
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = (r < M)[:, None] & (k < K)[None, :]
    row = r.to(tl.int64)[:, None]
    v = tl.load(x + row * x_step + k[None, :], keep, 0.0).to(tl.float32)
    if FROM == "row":
        scale = scale_of(tl.max(tl.abs(v), 1), TOP)
    else:
        if FROM == "partial":
            i = tl.arange(0, PARTS)
            one = scale_of(tl.max(tl.load(given + i, i < parts, 0.0), 0), TOP)
        else:
            one = tl.load(given)
        scale = tl.zeros((ROWS,), tl.float32) + one
    tl.store(codes + row * codes_step + k[None, :], _encode(tl.div_rn(v, scale[:, None]), codes, LOW, HIGH), keep)
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


def quantize(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, *, given: torch.Tensor | None = None,
    maxima: torch.Tensor | None = None, partial: bool = False, resources: Resources | None = None,
    top: float | None = None, low: float | None = None, options: Mapping[str, bool] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Write ``codes [M, K]`` of ``x [M, K]`` and contiguous ``scales``: one of every row, or one.

    ``given`` is a static scale ``[1]`` (float32); with ``partial`` the scale follows from all of x, which takes a
    launch more and a buffer of ``resources``, or from the partial ``maxima`` of x that a pass before has found; else
    each row has its own. The largest magnitude becomes ``top``; codes go from ``low`` to the format's largest, and all
    three are those of the format where they are not given. ``options`` are those of
    :func:`~phyai_backend_cuda.triton_rows.common.overlapping`.
    """
    x, written = rows_of(x), rows_of(codes)
    (rows, k), largest = x.shape, TOP[codes.dtype]
    lowest = -largest if low is None else low
    if partial and maxima is None:
        assert resources is not None
        steps, block = triton.next_power_of_2(triton.cdiv(rows, PARTS)), min(triton.next_power_of_2(k), TILE)
        maxima = parts_of(resources, triton.next_power_of_2(triton.cdiv(rows, steps)))
        _largest[(len(maxima),)](x, maxima, rows, x.stride(0), k, steps, block, num_warps=warps(block))
    source = maxima if partial else given
    parts = 1 if maxima is None else len(maxima)
    whole = triton.next_power_of_2(k)
    block = whole if source is None else min(whole, 2 * TILE)
    together = max(1, TILE // block)
    _quantize[(triton.cdiv(rows, together), triton.cdiv(k, block))](
        x, source, written, scales, rows, x.stride(0), written.stride(0), k, top or largest, lowest, largest,
        "partial" if partial else "row" if given is None else "given", len(scales) == rows, together, block,
        parts, triton.next_power_of_2(parts), bool(options), num_warps=warps(together * block), **options,
    )  # fmt: skip
    settle(codes, written)


def parts_of(resources: Resources, count: int) -> torch.Tensor:
    """A buffer for so many partial maxima."""
    return resources.workspace("cuda.quantize.parts", PARTS * 4).view(torch.float32)[:count]
