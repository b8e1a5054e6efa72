"""Host side of ``csrc/dense.cu``: a weight with its tiles, the arguments of a launch."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from phyai.facts import Facts, whole

from phyai_backend_cuda.dense.tiles import ROWS, Chip, Tile, tile_for
from phyai_backend_cuda.runtime.launch import Kernel, current_stream, load
from phyai_backend_cuda.runtime.memory import aligned, described, output, placed, settle
from phyai_backend_cuda.runtime.tensor_map import TensorMap, matrix_map

THREADS = 384
#: What the kernel is told of the type of x and of the weight.
ELEMENTS: Mapping[torch.dtype, Mapping[str, int]] = {
    torch.bfloat16: {}, torch.float16: {"HALF": 1}, torch.float8_e4m3fn: {"FP8": 1}
}  # fmt: skip
ACTIVATIONS = (None, "silu", "gelu", "gelu_tanh")


class Product:
    """``act(x · weightᵀ + bias)`` of any number of rows, with a tile chosen for their number."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, facts: Facts, *, activation: str | None = None,
        epilogue: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.weight, self.bias = aligned(weight), None if bias is None else aligned(bias)
        self._processors = whole(facts, "device.sm_count", 132)
        self._defines = {"ACTIVATION": ACTIVATIONS.index(activation), **ELEMENTS[weight.dtype], **(epilogue or {})}
        self._boxes: dict[int, TensorMap] = {}
        self._chosen: dict[int, tuple[Tile, Kernel]] = {}

    def load(self, rows: tuple[int, int] | None) -> None:
        """Compile for the least and the greatest number of rows of the site's calls; for one where nothing is said."""
        for count in rows or (1,):
            self.chosen(max(1, count))

    def chosen(self, rows: int) -> tuple[Tile, Kernel]:
        """The tile for so many rows, and its kernel."""
        if rows not in self._chosen:
            n, k = len(self.weight), self.weight.shape[1] * self.weight.element_size() // 2
            chip = Chip(self._processors)
            tile = self.tile_for(rows, n, k, chip)
            kernel = kernel_of(tile, self._defines)
            if tile.cluster == 4 and (fours := kernel.clusters(THREADS)) < chip.fours:
                tile = self.tile_for(rows, n, k, Chip(self._processors, fours))
                kernel = kernel_of(tile, self._defines)
            self._chosen[rows] = tile, kernel
        return self._chosen[rows]

    @staticmethod
    def tile_for(rows: int, n: int, k: int, chip: Chip) -> Tile:
        """The tile for so many rows on such a chip."""
        return tile_for(rows, n, k, chip)

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[..., N]`` of ``x [..., K]``."""
        n, k = self.weight.shape
        y = output(x, out, *x.shape[:-1], n)
        if y.numel():
            place = placed(y, 8)
            self.launch(described(x.reshape(-1, k)), place)
            settle(y, place)
        return y

    def launch(self, x: torch.Tensor, y: torch.Tensor, *scales: torch.Tensor, overlap: bool = True) -> None:
        """Write ``y [M, N]`` of ``x [M, K]`` on the current stream; FP8 has scales, of rows of x and of the weight.

        Rows of ``x`` and ``y`` have no gaps and begin at multiples of 16 bytes. With ``overlap`` weight and bias are
        read before the kernel in front has ended: they must have been written by no kernel that may still be running.
        """
        tile, kernel = self.chosen(len(x))
        more = [ctypes.c_void_p(scale.data_ptr()) for scale in scales]
        launch(kernel, tile, x, self.box(tile), self.bias, y, more, n=len(self.weight), overlap=overlap)

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
    kernel: Kernel, tile: Tile, x: torch.Tensor, weight: TensorMap, bias: torch.Tensor | None, y: torch.Tensor,
    more: Sequence[Any] = (), *, n: int, overlap: bool = True,
) -> None:  # fmt: skip
    """``more``: arguments of the epilogue."""
    (m, k), at = x.shape, [ctypes.c_void_p(None if t is None else t.data_ptr()) for t in (bias, y)]
    arguments = (
        matrix_map(x, ROWS // tile.along), weight, *at, ctypes.c_longlong(y.stride(0)),
        *(ctypes.c_int(size) for size in (m, n, k)), *more,
    )  # fmt: skip
    kernel.launch((tile.grid(m, n),), THREADS, arguments, current_stream(), overlap=overlap)
