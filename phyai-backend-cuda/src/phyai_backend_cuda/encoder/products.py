"""Products of ``csrc/dense.cu`` with a layer norm around them: in front, or behind an addition, as statistics of rows.

``layer_norm(x) · Wᵀ + bias`` of a row of mean ``m`` and deviation ``s`` is ``(x · Vᵀ - m · sums(V)) / s + c`` with
``V = norm_weight ∘ W`` and ``c = W · norm_bias + bias``: the product is of x as it is, the norm two numbers of a row.
"""

from __future__ import annotations

import ctypes

import attrs
import torch
from phyai.facts import Facts

from phyai_backend_cuda.dense.product import Product, launch
from phyai_backend_cuda.dense.tiles import ROWS, Chip, Tile, cost, split_of
from phyai_backend_cuda.runtime.launch import Kernel, current_stream, load
from phyai_backend_cuda.runtime.tensor_map import matrix_map

PART = 64  # elements of a row that one pair of statistics is of


@attrs.frozen
class Folded:
    """A weight ``[N, K]`` with the norm's in it, the sums of its rows, and the bias with the norm's in it (fp32)."""

    weight: torch.Tensor
    sums: torch.Tensor
    bias: torch.Tensor


def folded(
    weight: torch.Tensor, bias: torch.Tensor | None, norm_weight: torch.Tensor | None, norm_bias: torch.Tensor | None
) -> Folded:
    """The sums are of the weight as it is rounded, so that what a mean adds is taken off to the last bit of fp32.

    >>> ones = torch.ones(2, 4, dtype=torch.bfloat16)
    >>> made = folded(ones, None, 2 * ones[0], ones[0])
    >>> made.weight.tolist()[0], made.sums.tolist(), made.bias.tolist()
    ([2.0, 2.0, 2.0, 2.0], [8.0, 8.0], [4.0, 4.0])
    """
    exact = weight.double()
    scaled = weight if norm_weight is None else (exact * norm_weight.double()).to(weight.dtype)
    offset = torch.zeros_like(exact[:, 0]) if bias is None else bias.double()
    if norm_bias is not None:
        offset = offset + exact @ norm_bias.double()
    return Folded(scaled, scaled.double().sum(1).float(), offset.float())


def statistics_for(m: int, columns: int, device: torch.device) -> torch.Tensor:
    """Room for the statistics of ``m`` rows, ``[parts, m, 2]``."""
    return torch.empty(columns // PART, m, 2, dtype=torch.float32, device=device)


def statistics_kernel(dtype: torch.dtype) -> Kernel:
    """What :func:`statistics_of` launches."""
    return load("statistics.cu", "row_statistics", {"HALF": 1} if dtype == torch.float16 else {}, arch="sm_90a")


def statistics_of(x: torch.Tensor, into: torch.Tensor) -> None:
    """Those of ``x [M, columns]``, which no product wrote."""
    kernel = statistics_kernel(x.dtype)
    arguments = (
        ctypes.c_void_p(x.data_ptr()), ctypes.c_longlong(x.stride(0)), *map(ctypes.c_int, x.shape),
        ctypes.c_void_p(into.data_ptr()),
    )  # fmt: skip
    kernel.launch((-(-len(x) * (x.shape[1] // PART) // 16),), 128, arguments, current_stream(), overlap=True)


class Normed(Product):
    """``act(layer_norm(x) · weightᵀ + bias)``, of x and the statistics of its rows."""

    def __init__(self, made: Folded, eps: float, facts: Facts, *, activation: str | None = None) -> None:
        super().__init__(
            made.weight, made.bias, facts, activation=activation, epilogue={"NORMED": made.weight.shape[1] // PART}
        )
        self.sums, self.eps = made.sums, eps

    def normed(self, x: torch.Tensor, statistics: torch.Tensor, y: torch.Tensor) -> None:
        """Write ``y [M, N]``."""
        tile, kernel = self.chosen(len(x))
        more = ctypes.c_void_p(statistics.data_ptr()), ctypes.c_void_p(self.sums.data_ptr()), ctypes.c_float(self.eps)
        launch(kernel, tile, x, self.box(tile), self.bias, y, more, n=len(self.weight))

    def take(self, made: Folded) -> None:
        """New values in place."""
        self.refresh(made.weight, made.bias)
        self.sums.copy_(made.sums)


class Adding(Product):
    """``residual + x · weightᵀ + bias``, and the statistics of its rows."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, facts: Facts) -> None:
        super().__init__(weight, bias, facts, epilogue={"RESIDUAL": 1})

    @staticmethod
    def tile_for(rows: int, n: int, k: int, chip: Chip) -> Tile:
        """Of those whose blocks end with 64 columns each, the fastest."""
        split = split_of(n, k)
        tiles = [
            Tile(columns=PART * split, across=across, along=along, split=split)
            for across, along in ((1, 1), (2, 1), (1, 2), (2, 2)) if across * along * split <= 4
        ]  # fmt: skip
        return min(tiles, key=lambda tile: cost(tile, rows, n, k, chip))

    def added(self, x: torch.Tensor, residual: torch.Tensor, y: torch.Tensor, statistics: torch.Tensor) -> None:
        """Write ``y [M, N]``, which may be ``residual`` itself, and ``statistics``."""
        tile, kernel = self.chosen(len(x))
        more = matrix_map(residual, ROWS), ctypes.c_void_p(statistics.data_ptr())
        launch(kernel, tile, x, self.box(tile), self.bias, y, more, n=len(self.weight))
