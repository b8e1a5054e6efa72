"""Host side of ``csrc/dense.cu``: its tiles, its arguments and its launch."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import attrs

from phyai_backend_cuda.runtime.launch import Kernel, current_stream, load
from phyai_backend_cuda.runtime.tensor_map import TensorMap, matrix_map

if TYPE_CHECKING:
    import torch

ROWS, STEP, THREADS = 128, 64, 384  # of x in a block; elements of K at a time
ROW = 128  # bytes of a row at a time
MAX_STAGES, SHARED = 8, 232_448  # bytes of a processor that one block may have
ACTIVATIONS = (None, "silu", "gelu", "gelu_tanh", "relu", "gelu_tanh 1", "gelu_tanh 2")


@attrs.frozen(kw_only=True)
class Tile:
    """What a block of a product makes: 128 rows and so many ``columns``, of a part of K where it is ``split``.

    ``across`` blocks along M fetch weights for each other, ``along`` blocks along N rows of x.
    """

    columns: int
    across: int = 1
    along: int = 1
    split: int = 1
    stages: int = MAX_STAGES

    @property
    def cluster(self) -> int:
        return self.across * self.along * self.split

    @property
    def fixed_bytes(self) -> int:
        """Of shared memory, beside the stages: alignment, partial sums, biases, barriers."""
        partial = ROWS * self.columns // 2 * 4 if self.split == 2 else 0
        return 1024 + partial + self.columns * 4 + 16 * MAX_STAGES + 8

    @property
    def stage_bytes(self) -> int:
        return (ROWS + self.columns) * ROW

    @property
    def depth(self) -> int:
        """Stages that there are: as many as asked for, or as fit."""
        return min(self.stages, MAX_STAGES, (SHARED - self.fixed_bytes) // self.stage_bytes)

    @property
    def shared_bytes(self) -> int:
        return self.fixed_bytes + self.depth * self.stage_bytes

    def grid(self, m: int, n: int) -> int:
        """Blocks of a product ``[m, n]``."""
        return self.cluster * -(-m // (ROWS * self.across)) * -(-n // (self.columns * self.along))

    def defines(self, activation: str | None, half: bool) -> dict[str, int]:
        return {
            "COLUMNS": self.columns, "ACROSS": self.across, "ALONG": self.along, "SPLIT": self.split,
            "STAGES": self.depth, "ACTIVATION": ACTIVATIONS.index(activation), **({"HALF": 1} if half else {}),
        }  # fmt: skip

    def kernel(self, activation: str | None, half: bool) -> Kernel:
        return load(
            "dense.cu", "dense", self.defines(activation, half), arch="sm_90a", shared_bytes=self.shared_bytes,
            cluster=self.cluster,
        )  # fmt: skip


def weight_map(weight: torch.Tensor, tile: Tile) -> TensorMap:
    return matrix_map(weight, tile.columns // tile.across)


def launch(
    tile: Tile, x: torch.Tensor, y: torch.Tensor, *, weight: torch.Tensor, described: TensorMap,
    bias: torch.Tensor | None = None, activation: str | None = None, overlap: bool = True,
) -> None:  # fmt: skip
    """Write ``y [M, N] = act(x [M, K] · weightᵀ + bias)`` on the current stream.

    Rows of ``x`` and ``y`` have no gaps and begin at multiples of 16 bytes. With ``overlap`` weight and bias are read
    before the kernel in front has ended: they must have been written by no kernel that may still be running.
    """
    (m, k), n = x.shape, len(weight)
    arguments = (
        matrix_map(x, ROWS // tile.along), described, ctypes.c_void_p(None if bias is None else bias.data_ptr()),
        ctypes.c_void_p(y.data_ptr()), ctypes.c_longlong(y.stride(0)), *(ctypes.c_int(size) for size in (m, n, k)),
    )  # fmt: skip
    kernel = tile.kernel(activation, x.element_size() == 2 and str(x.dtype) == "torch.float16")
    kernel.launch((tile.grid(m, n),), THREADS, arguments, current_stream(), overlap=overlap)
