"""A weight as the groups that share a scale, read some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from phyai.quant.scheme import TensorQuant

if TYPE_CHECKING:
    import torch

#: Elements that are quantized at a time: their float32 copies stay in a core's cache.
CHUNK = 1 << 18
#: A weight is read in at least so many steps, so that the steps' copies stay small beside it.
_STEPS = 16

#: ``read(begin, end)`` gives those rows of a weight, in any floating dtype, on the device where codes should be.
Rows = Callable[[int, int], "torch.Tensor"]


@attrs.frozen(eq=False)
class Groups:
    """Some rows with the values of one group along the last dimension: ``values [R, C, E]``, float32.

    Groups at an edge are filled up with zeros; ``padding`` is True there, and None where nothing was filled up.
    """

    values: torch.Tensor
    tile: tuple[int, int]
    padding: torch.Tensor | None = None

    @classmethod
    def of(cls, w: torch.Tensor, quant: TensorQuant) -> Groups:
        import torch

        n, k = w.shape
        if quant.granularity == "tensor":
            return cls(w.reshape(1, 1, -1), (n, k))
        rows, columns = tile = quant.block_shape or (1, quant.group_size or k)
        fill = (0, -k % columns, 0, -n % rows)
        if not any(fill):
            return cls(_tiled(w, tile), tile)
        outside = torch.nn.functional.pad(torch.zeros_like(w, dtype=torch.bool), fill, value=True)
        return cls(_tiled(torch.nn.functional.pad(w, fill), tile), tile, _tiled(outside, tile))

    @property
    def rows_per_scale(self) -> int:
        return self.tile[0]

    def ungrouped(self, values: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        """Values in the form of :attr:`values` as a matrix of ``shape``."""
        (n, k), (rows, columns) = shape, self.tile
        if values.shape[:2] == (1, 1) or rows == 1:
            return values.reshape(-1, values.shape[1] * columns)[:n, :k]
        blocks = values.reshape(values.shape[0], values.shape[1], rows, columns).transpose(1, 2)
        return blocks.reshape(values.shape[0] * rows, -1)[:n, :k]

    def extremes(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The smallest and the largest value of every group, zero included: ``[R, C]`` each."""
        return self.values.amin(-1).clamp_(max=0), self.values.amax(-1).clamp_(min=0)


def _tiled(w: torch.Tensor, tile: tuple[int, int]) -> torch.Tensor:
    """A matrix that whole tiles make up, with the values of one tile along the last dimension."""
    rows, columns = tile
    if rows == 1:
        return w.reshape(w.shape[0], -1, columns)
    blocks = w.reshape(w.shape[0] // rows, rows, w.shape[1] // columns, columns)
    return blocks.transpose(1, 2).reshape(blocks.shape[0], blocks.shape[2], -1)


def chunks(read: Rows, shape: tuple[int, int], quant: TensorQuant, chunk: int) -> Iterator[tuple[int, int, Groups]]:
    """The weight, some rows at a time, in groups."""
    import torch

    n, k = shape
    step = 1 if quant.block_shape is None else quant.block_shape[0]
    rows = max(min(chunk // max(k, 1), -(-n // _STEPS)) // step * step, step)
    for begin in range(0, n, rows):
        end = min(begin + rows, n)
        yield begin, end, Groups.of(read(begin, end).to(torch.float32), quant)
