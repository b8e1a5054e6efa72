"""Products of int8 codes in Triton: sums in int32, scaled and rounded once in the end.

``torch._int_mm`` leaves int32 sums in memory, and takes 1.8 times as long for them at π0.5's sizes.
"""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from phyai_backend_cuda.triton_rows.common import wait_previous

#: Codes of a row that are multiplied at a time: what a swizzled row of shared memory holds.
BLOCK_K = 128


@triton.jit
def _int8_product(
    x, row_scale, w, column_scale, bias, y, M, row_step, N: tl.constexpr, K: tl.constexpr, COLUMNS: tl.constexpr,
    BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One tile; x and w are tensor maps. Programs side by side have one set of columns, so that weights are read from
    memory once."""
    wait_previous(OVERLAP)
    tiles = tl.cdiv(M, BM)
    m_start, n_start = (tl.program_id(0) % tiles) * BM, (tl.program_id(0) // tiles) * BN
    sums = tl.zeros((BM, BN), tl.int32)
    for k in range(0, K, BK):
        sums = tl.dot(x.load([m_start, k]), w.load([n_start, k]).T, sums, out_dtype=tl.int32)
    m, n = m_start + tl.arange(0, BM), n_start + tl.arange(0, BN)
    rows = tl.load(row_scale + m * row_step, m < M, 0.0)
    columns = tl.load(column_scale + n * COLUMNS, n < N, 0.0)
    v = sums.to(tl.float32) * rows[:, None] * columns[None, :]
    if BIAS:
        v += tl.load(bias + n, n < N, 0.0).to(tl.float32)[None, :]
    tl.store(y + m.to(tl.int64)[:, None] * N + n[None, :], v, (m < M)[:, None] & (n < N)[None, :])


def tile_of(rows: int, columns: int, processors: int = 132) -> tuple[int, int, int, int]:
    """Rows and columns of a tile, warps, and stages: two programs to a multiprocessor where there are enough tiles.

    >>> tile_of(968, 32768), tile_of(968, 2048), tile_of(50, 8192)
    ((128, 128, 4, 3), (128, 128, 8, 4), (64, 128, 4, 4))
    """
    if rows <= 64:
        return 64, 128, 4, 4
    many = -(-rows // 128) * -(-columns // 128) > processors
    return (128, 128, 4, 3) if many else (128, 128, 8, 4)


def int8_product(
    x: torch.Tensor, row_scale: torch.Tensor, weight: torch.Tensor, column_scale: torch.Tensor,
    bias: torch.Tensor | None, y: torch.Tensor, *, options: Mapping[str, bool] = MappingProxyType({}),
    tile: tuple[int, int, int, int] | None = None,
) -> None:  # fmt: skip
    """Write ``y [M, N]`` of codes ``x [M, K]`` and ``weight [N, K]``, all contiguous, at multiples of 16 bytes.

    K is a multiple of 16. Scales are fp32, one for each row or column, or one.
    """
    (m, k), n = x.shape, len(weight)
    block_m, block_n, warps, stages = tile or tile_of(m, n)
    _int8_product[(triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)](
        TensorDescriptor.from_tensor(x, [block_m, BLOCK_K]), row_scale,
        TensorDescriptor.from_tensor(weight, [block_n, BLOCK_K]), column_scale, bias, y, m, int(row_scale.numel() > 1),
        n, k, int(column_scale.numel() > 1), bias is not None, block_m, block_n, BLOCK_K, bool(options),
        num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
