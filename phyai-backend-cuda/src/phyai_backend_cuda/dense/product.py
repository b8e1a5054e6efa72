"""Host side of ``csrc/dense.cu``: its arguments and its launch."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch

from phyai_backend_cuda.dense.tiles import ROWS, Tile
from phyai_backend_cuda.runtime.launch import Kernel, current_stream, load
from phyai_backend_cuda.runtime.tensor_map import TensorMap, matrix_map

THREADS = 384
ACTIVATIONS = (None, "silu", "gelu", "gelu_tanh", "relu", "gelu_tanh 1")


class Weight:
    """A weight ``[N, K]`` in boxes of the copy engine."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.tensor = weight
        self._maps: dict[int, TensorMap] = {}

    def of(self, tile: Tile) -> TensorMap:
        rows = tile.columns // tile.across
        if rows not in self._maps:
            self._maps[rows] = matrix_map(self.tensor, rows)
        return self._maps[rows]


def kernel_of(tile: Tile, dtype: torch.dtype, activation: str | None = None, more: Mapping[str, int] = {}) -> Kernel:
    defines = {"ACTIVATION": ACTIVATIONS.index(activation), **({"HALF": 1} if dtype == torch.float16 else {})}
    return load(
        "dense.cu", "dense", {**tile.defines(), **defines, **more}, arch="sm_90a", shared_bytes=tile.shared_bytes,
        cluster=tile.cluster,
    )  # fmt: skip


def launch(
    kernel: Kernel, tile: Tile, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None, y: torch.Tensor | None,
    *more: Any, overlap: bool = True,
) -> None:  # fmt: skip
    """Write ``y [M, N] = act(x [M, K] · weightᵀ + bias)`` on the current stream, or what the kernel makes of it.

    Rows of ``x`` and ``y`` have no gaps and begin at multiples of 16 bytes. With ``overlap`` weight and bias are read
    before the kernel in front has ended: they must have been written by no kernel that may still be running.
    """
    (m, k), n = x.shape, len(weight.tensor)
    pointers = (None if t is None else t.data_ptr() for t in (bias, y))
    arguments = (
        matrix_map(x, ROWS // tile.along), weight.of(tile), *(ctypes.c_void_p(p) for p in pointers),
        ctypes.c_longlong(0 if y is None else y.stride(0)), *(ctypes.c_int(size) for size in (m, n, k)), *more,
    )  # fmt: skip
    kernel.launch((tile.grid(m, n),), THREADS, arguments, current_stream(), overlap=overlap)
