"""Which tile a block of ``csrc/dense.cu`` makes, and which tiles a product falls into."""

from __future__ import annotations

import functools

import attrs

ROWS, STEP = 128, 64  # of x in a block; elements of K at a time
ROW = 128  # bytes of a row at a time
MAX_STAGES, SHARED = 8, 232_448  # bytes of a processor that one block may have
MAX_COLUMNS = 256


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

    def defines(self) -> dict[str, int]:
        return {
            "COLUMNS": self.columns, "ACROSS": self.across, "ALONG": self.along, "SPLIT": self.split,
            "STAGES": self.depth,
        }  # fmt: skip
