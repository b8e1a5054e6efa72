"""Products of int8 codes in Triton: sums in int32, scaled and rounded once in the end."""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
import triton
import triton.language as tl

from phyai_backend_cuda.triton_rows.common import wait_previous


@triton.jit
def _int8_product(
    x, row_scale, w, column_scale, bias, y, M, row_step, N: tl.constexpr, K: tl.constexpr, COLUMNS: tl.constexpr,
    BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One tile. Programs side by side have one set of columns, so that weights are read from memory once."""
    wait_previous(OVERLAP)
    tiles = tl.cdiv(M, BM)
    m = (tl.program_id(0) % tiles) * BM + tl.arange(0, BM)
    n = (tl.program_id(0) // tiles) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    # rows and columns that are not there are read as others that are, and not written
    a = x + tl.where(m < M, m, 0).to(tl.int64)[:, None] * K + k[None, :]
    b = w + tl.where(n < N, n, 0).to(tl.int64)[None, :] * K + k[:, None]
    sums = tl.zeros((BM, BN), tl.int32)
    for start in range(0, K, BK):
        if K % BK:
            keep = start + k < K
            left, right = tl.load(a, keep[None, :], 0), tl.load(b, keep[:, None], 0)
        else:
            left, right = tl.load(a), tl.load(b)
        sums = tl.dot(left, right, sums, out_dtype=tl.int32)
        a += BK
        b += BK
    rows = tl.load(row_scale + m * row_step, m < M, 0.0)
    columns = tl.load(column_scale + n * COLUMNS, n < N, 0.0)
    v = sums.to(tl.float32) * rows[:, None] * columns[None, :]
    if BIAS:
        v += tl.load(bias + n, n < N, 0.0).to(tl.float32)[None, :]
    tl.store(y + m.to(tl.int64)[:, None] * N + n[None, :], v, (m < M)[:, None] & (n < N)[None, :])


def tile_of(rows: int, columns: int, processors: int = 132) -> tuple[int, int, int]:
    """Rows and columns of a tile, and warps: large ones where they fill the device."""
    if rows <= 64:
        return max(16, triton.next_power_of_2(rows)), 128, 4
    if triton.cdiv(rows, 128) * triton.cdiv(columns, 256) >= 2 * processors:
        return 128, 256, 8
    return 128, 128, 8


def int8_product(
    x: torch.Tensor, row_scale: torch.Tensor, weight: torch.Tensor, column_scale: torch.Tensor,
    bias: torch.Tensor | None, y: torch.Tensor, *, options: Mapping[str, bool] = MappingProxyType({}),
    tile: tuple[int, int, int] | None = None, block_k: int = 128, stages: int = 4,
) -> None:  # fmt: skip
    """Write ``y [M, N]`` of codes ``x [M, K]`` and ``weight [N, K]``, all contiguous, K a multiple of 16.

    Scales are fp32, one for each row or column, or one.
    """
    (m, k), n = x.shape, len(weight)
    block_m, block_n, warps = tile or tile_of(m, n)
    _int8_product[(triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)](
        x, row_scale, weight, column_scale, bias, y, m, int(row_scale.numel() > 1), n, k,
        int(column_scale.numel() > 1), bias is not None, block_m, block_n, min(block_k, triton.next_power_of_2(k)),
        bool(options), num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
