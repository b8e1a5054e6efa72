"""Codes of a few bits, packed into bytes: the bit streams of the plain layout and of the tools' own forms.

Code ``k`` of a row occupies bits ``k * bits`` to ``(k + 1) * bits - 1`` of the row's bytes, lowest first.

>>> import torch
>>> packed = pack_bits(torch.tensor([[1, 2, 3]], dtype=torch.uint8), 4)
>>> packed.tolist(), unpack_bits(packed, 4, 3).tolist()
([[33, 3]], [[1, 2, 3]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def pack_bits(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack unsigned codes ``[..., K]`` (uint8, each below ``2**bits``) into uint8 ``[..., ceil(K * bits / 8)]``."""
    import torch

    if bits == 8:
        return codes
    count = codes.shape[-1]
    width = -(-count * bits // 8)
    per, span = _unit(bits)
    pad = -count % per
    if pad:
        codes = torch.nn.functional.pad(codes, (0, pad))
    units = codes.reshape(*codes.shape[:-1], -1, per)
    if span == 1:
        packed: torch.Tensor = units[..., 0].clone()
        for j in range(1, per):
            packed |= units[..., j] << (j * bits)
        return packed
    word = torch.zeros(units.shape[:-1], dtype=torch.int64, device=codes.device)
    for j in range(per):
        word |= units[..., j].to(torch.int64) << (j * bits)
    data = torch.stack([(word >> (8 * i)) & 0xFF for i in range(span)], dim=-1)
    return data.to(torch.uint8).flatten(-2)[..., :width].contiguous()


def unpack_bits(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The inverse of :func:`pack_bits`: uint8 ``[..., count]`` from at least ``ceil(count * bits / 8)`` bytes a row."""
    import torch

    if bits == 8:
        return packed[..., :count]
    mask = (1 << bits) - 1
    per, span = _unit(bits)
    units = -(-count // per)
    pad = units * span - packed.shape[-1]
    packed = torch.nn.functional.pad(packed, (0, pad)) if pad > 0 else packed[..., : units * span]
    if span == 1:
        codes = torch.stack([(packed >> (j * bits)) & mask for j in range(per)], dim=-1)
        return codes.flatten(-2)[..., :count].contiguous()
    data = packed.reshape(*packed.shape[:-1], units, span).to(torch.int64)
    word = torch.zeros(data.shape[:-1], dtype=torch.int64, device=packed.device)
    for i in range(span):
        word |= data[..., i] << (8 * i)
    codes = torch.stack([(word >> (j * bits)) & mask for j in range(per)], dim=-1)
    return codes.to(torch.uint8).flatten(-2)[..., :count].contiguous()


def words_to_bytes(words: torch.Tensor) -> torch.Tensor:
    """int32 words ``[..., W]`` as uint8 ``[..., 4 * W]``, lowest byte first."""
    import torch

    return torch.stack([((words >> (8 * i)) & 0xFF).to(torch.uint8) for i in range(4)], dim=-1).flatten(-2)


def unpack_words(words: torch.Tensor, bits: int, count: int, per_word: int | None = None) -> torch.Tensor:
    """uint8 codes ``[..., count]`` from int32 words whose codes lie densely, or ``per_word`` in each."""
    import torch

    if per_word is None:
        return unpack_bits(words_to_bytes(words), bits, count)
    mask = (1 << bits) - 1
    codes = torch.stack([((words >> (j * bits)) & mask).to(torch.uint8) for j in range(per_word)], dim=-1)
    return codes.flatten(-2)[..., :count].contiguous()


def _unit(bits: int) -> tuple[int, int]:
    """The smallest whole number of codes that fills whole bytes, and how many bytes those are."""
    return {1: (8, 1), 2: (4, 1), 4: (2, 1), 6: (4, 3)}.get(bits, (8, bits))
