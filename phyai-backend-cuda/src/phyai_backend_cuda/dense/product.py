"""Host side of ``csrc/dense.cu``: a weight with its tiles, the arguments of a launch."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts, whole

from phyai_backend_cuda.dense.tiles import ROWS, Chip, Tile, tile_for
from phyai_backend_cuda.runtime.launch import Kernel, current_stream, load
from phyai_backend_cuda.runtime.memory import aligned, output, placed, readable, settle
from phyai_backend_cuda.runtime.tensor_map import TensorMap, matrix_map

THREADS = 384
ACTIVATIONS = (None, "silu", "gelu", "gelu_tanh")


class Product:
    """``act(x · weightᵀ + bias)`` of any number of rows, with a tile chosen for their number."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, facts: Facts, *, activation: str | None = None,
        defines: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.weight, self.bias = aligned(weight), None if bias is None else aligned(bias)
        self._processors = whole(facts, "device.sm_count", 132)
        half = {"HALF": 1} if weight.dtype == torch.float16 else {}
        self._defines = {"ACTIVATION": ACTIVATIONS.index(activation), **half, **(defines or {})}
        self._boxes: dict[int, TensorMap] = {}
        self._chosen: dict[int, tuple[Tile, Kernel]] = {}

    def load(self, rows: tuple[int, int] | None) -> None:
        """Compile for the least and the greatest number of rows of the site's calls, where they are known."""
        for count in rows or ():
            self.chosen(max(1, count))

    def chosen(self, rows: int) -> tuple[Tile, Kernel]:
        """The tile for so many rows, and its kernel."""
        if rows not in self._chosen:
            chip = Chip(self._processors)
            tile = tile_for(rows, *self.weight.shape, chip)
            kernel = kernel_of(tile, self._defines)
            if tile.cluster == 4 and (fours := kernel.clusters(THREADS)) < chip.fours:
                tile = tile_for(rows, *self.weight.shape, Chip(self._processors, fours))
                kernel = kernel_of(tile, self._defines)
            self._chosen[rows] = tile, kernel
        return self._chosen[rows]

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[..., N]`` of ``x [..., K]``."""
        n, k = self.weight.shape
        y = output(x, out, *x.shape[:-1], n)
        if y.numel():
            rows, place = readable(x.reshape(-1, k)), placed(y, 8)
            self.launch(rows, place)
            settle(y, place)
        return y

    def launch(self, x: torch.Tensor, y: torch.Tensor | None, *more: Any) -> None:
        """Write to ``y [M, N]`` on the current stream, or to what the kernel takes ``more`` of.

        Rows of ``x [M, K]`` and ``y`` have no gaps and begin at multiples of 16 bytes. Weight and bias are read before
        the kernel in front has ended: they must have been written by no kernel that may still be running.
        """
        tile, kernel = self.chosen(len(x))
        launch(kernel, tile, x, self.box(tile), self.bias, y, *more, n=len(self.weight))

    def box(self, tile: Tile) -> TensorMap:
        """The weight in boxes of the copy engine."""
        rows = tile.columns // tile.across
        if rows not in self._boxes:
            self._boxes[rows] = matrix_map(self.weight, rows)
        return self._boxes[rows]

    def refresh(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Take new values in place."""
        self.weight.copy_(weight)
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)


def kernel_of(tile: Tile, defines: Mapping[str, int]) -> Kernel:
    return load(
        "dense.cu", "dense", {**tile.defines(), **defines}, arch="sm_90a", shared_bytes=tile.shared_bytes,
        cluster=tile.cluster,
    )  # fmt: skip


def launch(
    kernel: Kernel, tile: Tile, x: torch.Tensor, weight: TensorMap, bias: torch.Tensor | None, y: torch.Tensor | None,
    *more: Any, n: int, overlap: bool = True,
) -> None:  # fmt: skip
    (m, k), pointers = x.shape, (None if t is None else t.data_ptr() for t in (bias, y))
    arguments = (
        matrix_map(x, ROWS // tile.along), weight, *(ctypes.c_void_p(p) for p in pointers),
        ctypes.c_longlong(0 if y is None else y.stride(0)), *(ctypes.c_int(size) for size in (m, n, k)), *more,
    )  # fmt: skip
    kernel.launch((tile.grid(m, n),), THREADS, arguments, current_stream(), overlap=overlap)
