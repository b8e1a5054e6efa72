"""Which tile a block of ``csrc/dense.cu`` makes, and which tiles a product falls into."""

from __future__ import annotations

import functools
import math

import attrs

ROWS, STEP = 128, 64  # of x in a block; elements of K at a time
ROW = 128  # bytes of a row at a time
MAX_STAGES, SHARED = 8, 232_448  # bytes of a processor that one block may have
MAX_COLUMNS = 256
#: Cycles before the first product and after the last; for each column of the result, for each neighbour in a cluster,
#: for sharing rows of x, and to exchange partial sums; bytes that L2 gives a cycle.
AROUND, COLUMN, NEIGHBOUR, SHARED_X, EXCHANGE, L2 = 8800, 8, 300, 600, 1000, 7000
#: Weights of so few outputs and so many inputs share K.
SPLIT_BELOW, SPLIT_FROM = 1536, 2048


@attrs.frozen(kw_only=True)
class Tile:
    """What a block makes: 128 rows and so many ``columns``, of a part of K where it is ``split``.

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
        """Of shared memory, beside the stages: alignment, partial sums, biases and scales, barriers."""
        partial = ROWS * self.columns // 2 * 4 if self.split == 2 else 0
        return 1024 + partial + self.columns * 8 + 16 * MAX_STAGES + 8

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

    def defines(self) -> dict[str, int]:
        return {
            "COLUMNS": self.columns, "ACROSS": self.across, "ALONG": self.along, "SPLIT": self.split,
            "STAGES": self.depth,
        }  # fmt: skip


@attrs.frozen
class Chip:
    """What a product may use: processors, and how many clusters of four blocks of one processor each run at once."""

    processors: int = 132
    fours: int = 30

    def at_once(self, tile: Tile) -> int:
        """Blocks that run at the same time."""
        if tile.cluster <= 2:
            return self.processors // tile.cluster * tile.cluster
        return self.fours * 4


def cost(tile: Tile, m: int, n: int, k: int, chip: Chip) -> float:
    """Cycles that a product takes, by a model whose constants come from measurements of an H200.

    A step of K takes as long as its products or as what it fetches from L2, whichever is longer, and somewhat more
    where they are alike; a wave of blocks as its steps, and what comes before and after them.
    """
    blocks, at_once = tile.grid(m, n), chip.at_once(tile)
    if not at_once:
        return math.inf
    fetched = (ROWS / tile.along + tile.columns / tile.across) * ROW * min(blocks, at_once) / L2
    step = math.sqrt(math.hypot((4 * tile.columns) ** 2, fetched**2))
    around = AROUND + COLUMN * tile.columns + NEIGHBOUR * (tile.cluster - 1)
    around += SHARED_X * (tile.along - 1) + EXCHANGE * (tile.split - 1)
    return -(-blocks // at_once) * (-(-k // STEP // tile.split) * step + around)


def split_of(n: int, k: int) -> int:
    """How many blocks share K. It follows from the weight alone, so that no row's result depends on the others.

    >>> [split_of(*weight) for weight in ((1152, 4304), (1152, 1152), (4304, 1152), (2048, 2048))]
    [2, 1, 1, 1]
    """
    return 2 if n <= SPLIT_BELOW and k >= SPLIT_FROM else 1


@functools.lru_cache(maxsize=1024)
def tile_for(m: int, n: int, k: int, chip: Chip = Chip()) -> Tile:
    """The tile that takes the least time by :func:`cost`.

    >>> [tile_for(768, n, 1152).columns for n in (3456, 4304)]
    [160, 208]
    """
    split = split_of(n, k)
    tiles = [
        Tile(columns=columns, across=across, along=along, split=split)
        for across, along in ((1, 1), (2, 1), (1, 2), (2, 2))
        if across * along * split <= 4
        for columns in range(8 * max(across, split), MAX_COLUMNS + 1, 8 * max(across, split))
    ]
    return min(tiles, key=lambda tile: cost(tile, m, n, k, chip))
