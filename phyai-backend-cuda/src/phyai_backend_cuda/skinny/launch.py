"""Products of at most 64 rows with a large weight: ``csrc/skinny.cu``, its shapes, its arguments and its launch."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from phyai_backend_cuda.runtime.launch import Kernel, current_stream, load

if TYPE_CHECKING:
    import torch

MAX_ROWS = 64
SHARED_LIMIT = 227 * 1024  # bytes of one block
CHUNK = 64  # of K, and rows of a warpgroup
SPLITS = (1, 2, 4, 8)
MAX_CHUNKS = 16  # of a block: their loop is unrolled
AHEAD = 8  # chunks in flight: enough to hide memory's latency, where they fit
PLAIN, RESIDUAL, GATED = 0, 1, 2  # epilogues
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
POINTERS = ("x", "w", "group_scale", "group_zero", "row_scale", "bias", "residual", "gate", "y")


class Params(ctypes.Structure):
    """``Params`` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_longlong) for name in ("x_row", "y_row")),
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
    centred: bool = False  # groups have zero points
    half: bool = False
    epilogue: int = PLAIN
    warpgroups: int = 1
    splits: int = 1
    ahead: int = 3

    @property
    def chunks(self) -> int:
        return self.k // CHUNK // self.splits

    @property
    def tiles(self) -> int:
        outputs = self.n // 2 if self.epilogue == GATED else self.n
        each = CHUNK * self.warpgroups // (2 if self.epilogue == GATED else 1)
        return -(-outputs // each)

    @property
    def blocks(self) -> int:
        return self.tiles * self.splits

    def objection(self) -> str | None:
        """Why this cannot be run; None where it can."""
        if self.splits not in SPLITS or self.warpgroups not in (1, 2):
            return f"splits={self.splits} is none of {SPLITS}, or warpgroups={self.warpgroups} neither 1 nor 2"
        if self.k % (CHUNK * self.splits):
            return f"K={self.k} is no multiple of 64 · {self.splits}"
        if self.chunks > MAX_CHUNKS:
            return f"{self.chunks} chunks of 64 to a block; {MAX_CHUNKS} are allowed"
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
            "CENTRED": int(self.centred), "EPILOGUE": self.epilogue, **({"HALF": 1} if self.half else {}),
        }  # fmt: skip

    def kernel(self, rows: int) -> Kernel:
        """Compiled for so many rows, rounded up to eight."""
        return load(
            "skinny.cu", "skinny", self.defines(rows), arch="sm_90a", shared_bytes=self.shared(rows),
            cluster=self.splits,
        )  # fmt: skip


def shape_for(
    n: int, k: int, *, bits: int = 16, group: int = 0, centred: bool = False, half: bool = False,
    epilogue: int = PLAIN, processors: int = 132,
) -> Shape | None:  # fmt: skip
    """The cut that measured fastest at shapes like this one, on an H200; None where no cut can be run.

    16-bit weights: the fewest splits with a block for nearly every second processor and at most 128 KiB of weights in
    each, for every split costs an exchange. Quantized ones: the most splits with two warpgroups to a processor, for
    what limits them is how fast codes become values.

    >>> o, gate_up, codes = shape_for(1024, 2048), shape_for(8192, 1024, epilogue=GATED), shape_for(1024, 2048, bits=8)
    >>> o.splits, o.blocks, gate_up.splits, gate_up.blocks, codes.splits, codes.blocks
    (4, 64, 2, 128, 8, 128)
    """
    warpgroups = 2 if epilogue == GATED else 1
    any_cut = Shape(
        n=n, k=k, bits=bits, group=group, centred=centred, half=half, epilogue=epilogue, warpgroups=warpgroups
    )
    cuts = [attrs.evolve(any_cut, splits=splits) for splits in SPLITS]
    cuts = [cut for cut in cuts if cut.objection() is None]
    if not cuts:
        return None
    if bits == 16:
        few = (cut for cut in cuts if cut.blocks * 9 >= processors * 4 and cut.chunks * warpgroups <= 16)
        best = next(few, cuts[-1])
    else:
        best = next((cut for cut in reversed(cuts) if cut.blocks * warpgroups <= 2 * processors), cuts[0])
    # Clusters of eight leave processors over: with all of them to fit at once, two blocks share a processor.
    alone = best.blocks <= processors and best.splits < 8
    room = (SHARED_LIMIT if alone else SHARED_LIMIT // 2) - best.chunks * MAX_ROWS // 8 * 1024
    return attrs.evolve(best, ahead=max(3, min(AHEAD, best.chunks, room // (warpgroups * 512 * bits))))


def launch(
    shape: Shape, x: torch.Tensor, y: torch.Tensor, *, operands: Mapping[str, torch.Tensor],
    bias: torch.Tensor | None = None, residual: torch.Tensor | None = None, gate: torch.Tensor | None = None,
    activation: str = "silu", overlap: bool = True,
) -> None:  # fmt: skip
    """Launch on the current stream.

    ``operands`` are the weight: ``w`` as it lies, or packed codes with ``group_scale`` (and ``group_zero``) or
    ``row_scale``. Rows of ``x [M, K]`` and ``y [M, N]`` have no gaps and begin at multiples of 16 and of 8 bytes;
    ``residual`` and ``gate`` are contiguous.

    Before the kernel in front has ended only ``operands`` are read: with ``overlap`` they must have been written by
    no kernel that may still be running.
    """
    given = {**operands, "x": x, "bias": bias, "residual": residual, "gate": gate, "y": y}
    pointers = (given.get(name) for name in POINTERS)
    arguments = Params(
        *(None if t is None else t.data_ptr() for t in pointers), x.stride(0), y.stride(0), len(x), shape.n, shape.k,
        1 if gate is None else len(x) // len(gate), ACTIVATIONS.index(activation),
    )  # fmt: skip
    grid = (shape.splits, shape.tiles)
    shape.kernel(len(x)).launch(grid, 128 * shape.warpgroups, (arguments,), current_stream(), overlap=overlap)
