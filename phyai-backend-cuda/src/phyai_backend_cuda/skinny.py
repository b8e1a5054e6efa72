"""Products of at most 64 rows with a large weight: ``csrc/skinny.cu``, its shapes, its arguments and its launch."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import attrs

from phyai_backend_cuda.launch import Kernel, current_stream, load

if TYPE_CHECKING:
    import torch

MAX_ROWS = 64
SHARED_LIMIT = 227 * 1024  # bytes of one block
CHUNK = 64  # of K, and rows of a warpgroup
PLAIN, RESIDUAL, GATED = 0, 1, 2  # epilogues
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
POINTERS = ("x", "w", "group_scale", "group_zero", "row_scale", "bias", "residual", "gate", "y")


class Params(ctypes.Structure):
    """``Params`` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int) for name in ("m", "n", "k", "gate_rows", "activation")),
    )  # fmt: skip


@attrs.frozen(kw_only=True)
class Shape:
    """How one product is cut up: blocks of ``warpgroups`` · 64 outputs, K shared by ``splits`` of them, and
    ``ahead`` chunks of 64 of K in flight."""

    n: int
    k: int
    bits: int = 16
    group: int = 0
    half: bool = False
    epilogue: int = PLAIN
    warpgroups: int = 1
    splits: int = 1
    ahead: int = 4

    @property
    def chunks(self) -> int:
        return self.k // CHUNK // self.splits

    @property
    def tiles(self) -> int:
        outputs = self.n // 2 if self.epilogue == GATED else self.n
        each = CHUNK * self.warpgroups // (2 if self.epilogue == GATED else 1)
        return -(-outputs // each)

    def objection(self) -> str | None:
        """Why this cannot be run; None where it can."""
        if self.k % (CHUNK * self.splits):
            return f"K={self.k} is no multiple of 64 · {self.splits}"
        if self.group and self.chunks * CHUNK % self.group:
            return f"{self.chunks} chunks of 64 are not whole groups of {self.group}"
        if self.ahead < 3:
            return "ahead is less than 3"
        if self.epilogue == GATED and (self.warpgroups != 2 or self.n % (2 * CHUNK)):
            return "gate and up rows need two warpgroups, and N a multiple of 128"
        if self.shared(MAX_ROWS) > SHARED_LIMIT:
            return f"{self.shared(MAX_ROWS)} bytes of shared memory; {SHARED_LIMIT} fit"
        return None

    def shared(self, rows: int) -> int:
        """Bytes of shared memory for so many rows of x."""
        eights = -(-rows // 8)
        loads = min(self.ahead, self.chunks) * self.warpgroups * 512 * self.bits + self.chunks * eights * 1024
        return max(loads, eights * 8 * (self.warpgroups * CHUNK * 4 + 16))

    def defines(self, rows: int) -> dict[str, int]:
        return {
            "M8": -(-rows // 8), "CHUNKS": self.chunks, "SPLITS": self.splits, "GROUPS": self.warpgroups,
            "AHEAD": min(self.ahead, max(self.chunks, 3)), "BITS": self.bits, "GROUP": self.group,
            "EPILOGUE": self.epilogue, **({"HALF": 1} if self.half else {}),
        }  # fmt: skip

    def kernel(self, rows: int) -> Kernel:
        """Compiled for so many rows, rounded up to eight."""
        return load(
            "skinny.cu", "skinny", self.defines(rows), arch="sm_90a", shared_bytes=self.shared(rows),
            cluster=self.splits,
        )  # fmt: skip


def shape_for(
    n: int, k: int, *, bits: int = 16, group: int = 0, half: bool = False, epilogue: int = PLAIN, processors: int = 132
) -> Shape | None:
    """A block for every processor, or two, whose activations and first weights take half of its shared memory.

    None where no cut can be run.

    >>> o, gate_up = shape_for(1024, 2048), shape_for(8192, 1024, epilogue=GATED)
    >>> o.splits, o.tiles, gate_up.splits, gate_up.tiles
    (8, 16, 2, 64)
    """
    best: tuple[tuple[bool, int], Shape] | None = None
    for splits in (1, 2, 4, 8):
        shape = Shape(
            n=n, k=k, bits=bits, group=group, half=half, epilogue=epilogue, warpgroups=2 if epilogue == GATED else 1,
            splits=splits,
        )  # fmt: skip
        chunk = shape.warpgroups * 512 * bits
        room = max(0, SHARED_LIMIT // 2 - shape.chunks * MAX_ROWS // 8 * 1024) // chunk
        shape = attrs.evolve(shape, ahead=max(3, min(room, shape.chunks)))
        blocks = shape.tiles * splits
        key = (room < 3, abs(blocks - processors))
        if shape.objection() is None and (best is None or key < best[0]):
            best = key, shape
    return best[1] if best else None


def run(
    shape: Shape, x: torch.Tensor, y: torch.Tensor, *, w: torch.Tensor, group_scale: torch.Tensor | None = None,
    group_zero: torch.Tensor | None = None, row_scale: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None, gate: torch.Tensor | None = None, activation: str = "silu",
    overlap: bool = True,
) -> None:  # fmt: skip
    """Launch on the current stream. ``x [M, K]`` and ``y [M, N]`` are contiguous and 16-byte aligned."""
    pointers = (x, w, group_scale, group_zero, row_scale, bias, residual, gate, y)
    arguments = Params(
        *(None if t is None else t.data_ptr() for t in pointers), len(x), shape.n, shape.k,
        1 if gate is None else len(x) // len(gate), ACTIVATIONS.index(activation),
    )  # fmt: skip
    grid = (shape.splits, shape.tiles)
    shape.kernel(len(x)).launch(grid, 128 * shape.warpgroups, (arguments,), current_stream(), overlap=overlap)
