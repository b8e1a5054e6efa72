"""Products of at most 64 rows with a large weight: ``csrc/skinny.cu``, its shapes, its arguments and its launch; and
of ``csrc/skinny_pair.cu``, two blocks for 128 rows of 16-bit W.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from phyai_backend_cuda.runtime.launch import Kernel, current_stream, load
from phyai_backend_cuda.skinny.epilogues import Heads

if TYPE_CHECKING:
    import torch

MAX_ROWS = 64
CHUNK = 64  # of K, and rows of W of a block, but for pairs
PAIR_ROWS = 128  # of W, of two blocks with half of K each
PAIR_CHUNKS = (4, 8)  # of a block: at least what its exchange needs, at most what fits with all of x
PAIR_RING = 6  # units of 64 rows by 64 of K in shared memory
SPLITS = (1, 2, 4, 8)
MAX_CHUNKS = 16  # of a block: their loop is unrolled
HELD = 8  # chunks in registers, 16 of them each
ROOMY = 66  # blocks of a launch: with more, two launches have no processor for each
LEAST_CHUNKS = 8  # of a block that shares K: with fewer the exchange costs more than they save
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
POINTERS = (
    "x", "w", "group_scale", "group_zero", "row_scale", "bias", "y", "residual", "gate", "positions", "slots",
    "cos_sin", "k_cache", "v_cache",
)  # fmt: skip
STRIDES = (
    "x_row", "y_row", "residual_row", "gate_row", "y_head", "k_page", "k_slot", "k_head", "v_page", "v_slot", "v_head",
)  # fmt: skip
COUNTS = ("m", "n", "k", "gate_rows", "position_words", "page_size")


class Params(ctypes.Structure):
    """``Params`` of the kernels."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_longlong) for name in STRIDES),
        *((name, ctypes.c_int) for name in COUNTS),
    )  # fmt: skip


@attrs.frozen(kw_only=True)
class Shape:
    """How one product is cut up: blocks of 64 rows of W, K shared by ``splits`` of them; or of 128 rows, by two.

    With an ``activation`` the first half of W is gate, the second up, and the outputs are act(gate) · up; with a
    ``residual`` they are multiplied by a gate and added to it; as ``heads`` they are rotated and written to a cache.
    """

    n: int
    k: int
    bits: int = 16
    group: int = 0
    centred: bool = False  # groups have zero points
    half: bool = False
    activation: str | None = None
    residual: bool = False
    heads: Heads | None = None
    splits: int = 1
    block_rows: int = CHUNK

    @property
    def paired(self) -> bool:
        return self.block_rows == PAIR_ROWS

    @property
    def source(self) -> str:
        return "skinny_pair.cu" if self.paired else "skinny.cu"

    @property
    def stored(self) -> int:
        """Elements of an output's row that are stored at once."""
        return 8 if self.paired else 2

    @property
    def outputs(self) -> int:
        return self.n // 2 if self.activation else self.n

    @property
    def chunks(self) -> int:
        """64 of K each, of one block."""
        return self.k // CHUNK // self.splits

    @property
    def tiles(self) -> int:
        return -(-self.n // self.block_rows)

    @property
    def blocks(self) -> int:
        return self.tiles * self.splits

    @property
    def roomy(self) -> bool:
        """A block takes a processor's shared memory for all of x and more of W; the launch behind has other ones."""
        plain = not (self.activation or self.residual or self.heads)
        return plain and self.bits == 16 and self.splits == 1 and self.blocks <= ROOMY

    @property
    def held(self) -> int:
        """Chunks of W in registers before the kernel in front has ended."""
        return min(HELD, self.chunks // 2 if self.bits == 16 else self.chunks)

    @property
    def ring(self) -> int:
        """Chunks of 16-bit W in shared memory; where partial results lie there as well, fewer fit."""
        fitting = 8 if self.roomy else 6 if self.splits == 1 else 4
        return min(self.chunks - self.held, fitting) if self.bits == 16 else 0

    @property
    def x_ring(self) -> int:
        """Chunks of x in shared memory."""
        return min(self.chunks, MAX_CHUNKS if self.roomy else 8)

    def objection(self) -> str | None:
        """Why this cannot be run; None where it can."""
        if self.block_rows not in (CHUNK, PAIR_ROWS):
            return f"block_rows={self.block_rows} is neither {CHUNK} nor {PAIR_ROWS}"
        if self.paired and (self.splits != 2 or self.bits != 16):
            return f"{PAIR_ROWS} rows to a block need 16-bit weights and splits=2"
        if self.paired and (self.residual or self.heads):
            return f"{PAIR_ROWS} rows to a block have no residual and no heads"
        if (self.activation is not None) + self.residual + (self.heads is not None) > 1:
            return "an activation, a residual and heads exclude each other"
        if self.heads is not None and (why := self.heads.objection()) is not None:
            return why
        if self.splits not in SPLITS:
            return f"splits={self.splits} is none of {SPLITS}"
        if self.k % (CHUNK * self.splits):
            return f"K={self.k} is no multiple of 64 · {self.splits}"
        if self.paired and not PAIR_CHUNKS[0] <= self.chunks <= PAIR_CHUNKS[1]:
            return f"{self.chunks} chunks of 64 to a block of {PAIR_ROWS} rows; {PAIR_CHUNKS} are the bounds"
        if self.paired and self.outputs % self.stored:
            return f"{PAIR_ROWS} rows to a block need a multiple of {self.stored} outputs, not {self.outputs}"
        if self.chunks > MAX_CHUNKS:
            return f"{self.chunks} chunks of 64 to a block; {MAX_CHUNKS} are allowed"
        if self.group and self.chunks * CHUNK % self.group:
            return f"{self.chunks} chunks of 64 are not whole groups of {self.group}"
        if self.activation and self.n % (2 * CHUNK):
            return f"gate and up rows need N a multiple of 128, not {self.n}"
        return None

    def shared(self, rows: int) -> int:
        """Bytes of shared memory for so many rows of x: both rings, and of a cluster partial results and a barrier."""
        eights = -(-rows // 8)
        if self.paired:  # partial results come over x
            return PAIR_RING * CHUNK * 128 + self.chunks * eights * 1024 + 16
        loads = self.ring * CHUNK * 128 + self.x_ring * eights * 1024
        if self.splits > 1:
            return loads + self.splits * -(-eights // self.splits) * 2048 + 16
        return max(loads, eights * 2048 if self.activation or self.heads else 0)

    def defines(self, rows: int) -> dict[str, int]:
        shared = {
            "M8": -(-rows // 8), "CHUNKS": self.chunks,
            "ACTIVATION": 1 + ACTIVATIONS.index(self.activation) if self.activation else 0,
            **({"HALF": 1} if self.half else {}),
        }  # fmt: skip
        if self.paired:
            return shared
        return shared | {
            "SPLITS": self.splits, "RING": self.ring, "HELD": self.held, "XRING": self.x_ring,
            "BITS": self.bits, "GROUP": self.group, "CENTRED": int(self.centred),
            "EPILOGUE": 1 if self.residual else 2 if self.heads else 0, **(self.heads.defines() if self.heads else {}),
        }  # fmt: skip

    def kernel(self, rows: int) -> Kernel:
        """Compiled for so many rows, rounded up to eight."""
        return load(
            self.source, self.source.removesuffix(".cu"), self.defines(rows), arch="sm_90a",
            shared_bytes=self.shared(rows), cluster=self.splits, carveout=100,
        )  # fmt: skip


def shape_for(
    n: int, k: int, *, bits: int = 16, group: int = 0, centred: bool = False, half: bool = False,
    activation: str | None = None, residual: bool = False, heads: Heads | None = None, processors: int = 132,
) -> Shape | None:  # fmt: skip
    """The cut that measured fastest at shapes like this one, on an H200; None where no cut can be run.

    K is shared by as many blocks as have a processor each and eight chunks of K or more; where not even the fewest do,
    by the fewest. That is the same for every format. But a product of 16-bit weights that one block for all of K can
    have is not shared where there are two processors for each of these blocks: nothing is exchanged then.

    Where more processors get a block for all of K, then of 16-bit weights x may not fit beside a block's, and is
    refilled after the wait: 128 rows and half of K are as many bytes of W to a block, and half as many of x. That is
    taken where more than half of the processors, and at most all, get such a block.

    It does not depend on the number of rows of x, so no row's result does.

    >>> calls = {"qkv": (2560, 1024), "o": (1024, 2048), "gate_up": (8192, 1024), "down": (1024, 4096)}
    >>> {name: (cut.block_rows, cut.splits, cut.blocks) for name, call in calls.items() if (cut := shape_for(*call))}
    {'qkv': (64, 1, 40), 'o': (64, 4, 64), 'gate_up': (128, 2, 128), 'down': (64, 8, 128)}
    >>> [(cut.block_rows, cut.splits, cut.blocks) for bits in (8, 4) if (cut := shape_for(8192, 1024, bits=bits))]
    [(64, 1, 128), (64, 1, 128)]
    """
    any_cut = Shape(
        n=n, k=k, bits=bits, group=group, centred=centred, half=half, activation=activation, residual=residual,
        heads=heads,
    )  # fmt: skip
    cuts = [attrs.evolve(any_cut, splits=splits) for splits in SPLITS]
    cuts = [cut for cut in cuts if cut.objection() is None]
    best = [cut for cut in cuts if cut.blocks <= processors and cut.chunks >= LEAST_CHUNKS]
    found = next(iter([*best[::-1], *cuts]), None)
    if whole := next((cut for cut in cuts if cut.roomy and 2 * cut.blocks <= processors), None):
        return whole
    pair = attrs.evolve(any_cut, splits=2, block_rows=PAIR_ROWS)
    if found is not None and found.splits == 1 and found.x_ring < found.chunks and pair.objection() is None:
        return pair if processors // 2 < pair.blocks <= processors else found
    return found


def launch(
    shape: Shape, x: torch.Tensor, y: torch.Tensor, *, operands: Mapping[str, torch.Tensor],
    bias: torch.Tensor | None = None, more: Mapping[str, int] | None = None, overlap: bool = True,
) -> None:  # fmt: skip
    """Launch on the current stream.

    ``operands`` are the weight: ``w`` as it lies, or packed codes with ``group_scale`` (and ``group_zero``) or
    ``row_scale``. Rows of ``x [M, K]`` and ``y [M, outputs]`` have no gaps and begin at multiples of 16 bytes and of
    ``shape.stored`` elements. ``more`` are the arguments of its epilogue (see :mod:`.epilogues`).

    Before the kernel in front has ended only ``operands`` are read: with ``overlap`` they must have been written by
    no kernel that may still be running.
    """
    given = {**operands, "x": x, "y": y, **({} if bias is None else {"bias": bias})}
    pointers = {name: tensor.data_ptr() for name, tensor in given.items()}
    sizes = {"x_row": x.stride(0), "y_row": y.stride(0), "m": len(x), "n": shape.n, "k": shape.k}
    arguments = Params(**pointers, **{**sizes, **(more or {})})
    shape.kernel(len(x)).launch((shape.splits, shape.tiles), 128, (arguments,), current_stream(), overlap=overlap)
