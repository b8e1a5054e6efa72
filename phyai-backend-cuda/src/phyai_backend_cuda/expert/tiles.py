"""Layouts that the kernels' bulk copies and tensor cores read directly.

A *tile* is ``rows`` × 64 bf16: rows of 128 bytes whose eight 16-byte units are permuted by ``unit ^ (row % 8)``
(the 128-byte swizzle of Hopper's shared-memory descriptors), so that a tile can be copied as plain bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def pack_tiles(matrix: torch.Tensor, rows: int) -> torch.Tensor:
    """``[N, K]`` → ``[N / rows, K / 64, rows, 64]``, each tile swizzled.

    >>> import torch
    >>> tiles = pack_tiles(torch.arange(16 * 64).view(16, 64), 8)
    >>> tiles.shape, tiles[0, 0, 1, :8].tolist() == list(range(64 + 8, 64 + 16))
    (torch.Size([2, 1, 8, 64]), True)
    """
    import torch

    n, k = matrix.shape
    tiles = matrix.reshape(n // rows, rows, k // 64, 8, 8).transpose(1, 2)
    row, unit = torch.arange(rows, device=matrix.device), torch.arange(8, device=matrix.device)
    source = unit[None, :] ^ (row[:, None] % 8)
    index = source[None, None, :, :, None].expand(*tiles.shape[:3], 8, 8)
    return tiles.gather(3, index).reshape(n // rows, k // 64, rows, 64)


def unpack_tiles(tiles: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`pack_tiles`."""
    blocks, chunks, rows, _ = tiles.shape
    flat = tiles.transpose(1, 2).reshape(blocks * rows, chunks * 64)
    again = pack_tiles(flat, rows)  # the swizzle is its own inverse
    return again.transpose(1, 2).reshape(blocks * rows, chunks * 64)


def rope_pairs(head_dim: int) -> torch.Tensor:
    """The order that puts NeoX rope's partners, dimensions i and i + head_dim / 2, side by side.

    >>> rope_pairs(8).tolist()
    [0, 4, 1, 5, 2, 6, 3, 7]
    """
    import torch

    half = torch.arange(head_dim // 2)
    return torch.stack((half, half + head_dim // 2), 1).flatten()
