"""Weights and tables of the persistent expert in the order in which ``csrc/expert/expert.cu`` reads them.

The modulations of every denoising step depend on the step alone, so ``(1 + scale)``, the gate, and
``shift · Wᵀ`` of each adaRMS norm are tables made once; see the kernel's head for what it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from phyai_backend_cuda.expert.tiles import pack_tiles, rope_pairs

if TYPE_CHECKING:
    import torch

BLOCKS, RANKS = 128, 8
HEADS, HEAD_DIM, INTERMEDIATE = 8, 256, 4096
ROT, ROTC = 4, 4


@attrs.frozen
class LayerWeights:
    """Weights of one layer, ``[out, in]`` bf16: qkv ``[2560, 1024]``, o ``[1024, 2048]``, gate_up ``[8192, 1024]``
    (gate first), down ``[1024, 4096]``."""

    qkv: torch.Tensor
    o: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def qkv_order(device: Any = None) -> torch.Tensor:
    """Rows of the merged qkv weight in the kernel's order: rope partners adjacent in q and k, v as it is."""
    import torch

    pairs = rope_pairs(HEAD_DIM)
    heads = [h * HEAD_DIM + pairs for h in range(HEADS + 1)]
    return torch.cat((*heads, (HEADS + 1) * HEAD_DIM + torch.arange(HEAD_DIM))).to(device)


def gate_up_order(device: Any = None) -> torch.Tensor:
    """Rows of the merged gate/up weight in the kernel's order.

    Row ``n = 8j + 2q + t`` of block b's 64 is the gate (t = 0) or up (t = 1) row of column
    ``32b + 16 (j // 4) + 4q + j % 4``: then a thread of the accumulator holds both factors of four adjacent outputs of
    two k-steps.
    """
    import torch

    n = torch.arange(64)
    column = n // 32 * 16 + n % 8 // 2 * 4 + n // 8 % 4
    block = torch.arange(BLOCKS)[:, None]
    return ((n % 2)[None] * INTERMEDIATE + block * 32 + column[None]).flatten().to(device)


def attention_order(device: Any = None) -> torch.Tensor:
    """Columns of the o weight in the kernel's order: within a head, column ``16k + 4q + e`` is
    ``64 (k // 4) + 32 (k // 2 % 2) + 8j + 2q + e % 2`` with ``j = 2 (k % 2) + e // 2``, which is what one thread has of
    the attention's accumulator."""
    import torch

    p = torch.arange(HEAD_DIM)
    k, q, e = p // 16, p % 16 // 4, p % 4
    within = k // 4 * 64 + k // 2 % 2 * 32 + (k % 2 * 2 + e // 2) * 8 + q * 2 + e % 2
    return (torch.arange(HEADS)[:, None] * HEAD_DIM + within[None]).flatten().to(device)


def fragment_order(columns: int, device: Any = None) -> torch.Tensor:
    """Columns of a weight whose activations come as fragments: of each 16, a thread holds columns ``4q .. 4q + 3``, and
    the tensor core takes them as its k = 2q, 2q + 1, 2q + 8, 2q + 9.

    >>> fragment_order(16).tolist()
    [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15]
    """
    import torch

    k = torch.arange(columns)
    return (k // 16 * 16 + k % 8 // 2 * 4 + k % 16 // 8 * 2 + k % 2).to(device)


def first_octet(block: int) -> int:
    """The first of block ``block``'s octets (eight rows) of the 320 of qkv: 64 blocks have three, 64 have two."""
    return 3 * block if block < 64 else 192 + 2 * (block - 64)


def in_fragments(weight: torch.Tensor) -> torch.Tensor:
    """``weight`` with its columns, K, in the order of fragments."""
    return weight[:, fragment_order(weight.shape[1], weight.device)]


def rotate_chunks(tiles: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """``[B, chunks, ...]`` with block b's chunks from ``first[b]`` on: blocks that read the same activations begin at
    different ones."""
    import torch

    chunks = tiles.shape[1]
    index = (torch.arange(chunks, device=tiles.device)[None] + first.to(tiles.device)[:, None]) % chunks
    return tiles[torch.arange(tiles.shape[0], device=tiles.device)[:, None], index]


def swap_halves(tiles: torch.Tensor) -> torch.Tensor:
    """``[B, chunks, 64, 64]`` with the halves of the rows of every odd chunk exchanged: warpgroup 1 multiplies
    those, and has what it keeps of a product in the same registers as warpgroup 0."""
    import torch

    odd = torch.arange(tiles.shape[1], device=tiles.device) % 2 == 1
    return torch.where(odd[:, None, None], tiles.roll(32, 2), tiles)


def pack_qkv(weight: torch.Tensor) -> torch.Tensor:
    """``[2560, 1024]`` → flat: per block, per chunk of K, the block's octets."""
    import torch

    tiles = pack_tiles(in_fragments(weight)[qkv_order(weight.device)], 8)  # [320, 16, 8, 64]
    block = torch.arange(BLOCKS) // ROT
    narrow_from = first_octet(64)
    wide, narrow = tiles[:narrow_from].reshape(64, 3, 16, 512), tiles[narrow_from:].reshape(64, 2, 16, 512)
    parts = (rotate_chunks(t.transpose(1, 2), first) for t, first in ((wide, block[:64]), (narrow, block[64:])))
    return torch.cat([part.flatten() for part in parts])


def pack_by_rank(weight: torch.Tensor) -> torch.Tensor:
    """``[1024, K]`` → flat: per eighth of K, per 64 rows, the chunks."""
    import torch

    tiles = pack_tiles(in_fragments(weight), 64)  # [16, K / 64, 64, 64]
    ranks = tiles.reshape(16, RANKS, -1, 64, 64).transpose(0, 1).reshape(BLOCKS, -1, 64, 64)
    return swap_halves(rotate_chunks(ranks, torch.arange(BLOCKS) % 16 // ROTC)).flatten()


def pack_embed(weight: torch.Tensor) -> torch.Tensor:
    """``[1024, 1024]`` → flat: per block, per chunk of K, the eight rows whose columns of x the block owns."""
    import torch

    tiles = pack_tiles(in_fragments(weight), 8)  # [128, 16, 8, 64]
    block = torch.arange(BLOCKS, device=weight.device)
    return rotate_chunks(tiles[block % 16 * RANKS + block // 16], block // ROT).flatten()


def pack_out(weight: torch.Tensor) -> torch.Tensor:
    """``[32, 1024]`` → flat: per chunk of K, all four octets, for every block the same."""
    return pack_tiles(in_fragments(weight), 8).transpose(0, 1).flatten()


def pack_layer(layer: LayerWeights) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The four flat packed weights of a layer, in the order of ``LayerWeights``."""
    import torch

    gate_up = pack_tiles(in_fragments(layer.gate_up)[gate_up_order(layer.gate_up.device)], 64)
    return (
        pack_qkv(layer.qkv),
        pack_by_rank(layer.o[:, attention_order(layer.o.device)]),
        swap_halves(rotate_chunks(gate_up, torch.arange(BLOCKS) // ROT)).flatten(),
        pack_by_rank(layer.down),
    )


def modulation_tables(
    layers: Sequence[LayerWeights],
    attention: torch.Tensor,
    mlp: torch.Tensor,
    final: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Tables of all steps, fp32. ``attention`` and ``mlp`` are ``[S, L, 3·1024]``, ``final`` ``[S, 3·1024]``: scale,
    shift and gate as the adaRMS projections give them."""  # fmt: skip
    import torch

    scale1, shift1, gate1 = attention.float().chunk(3, -1)
    scale2, shift2, gate2 = mlp.float().chunk(3, -1)
    scale_f, shift_f, _ = final.float().chunk(3, -1)
    device = attention.device
    qkv, gate_up = qkv_order(device), gate_up_order(device)
    shift_qkv = torch.stack([shift1[:, i] @ w.qkv.float().T for i, w in enumerate(layers)], 1)[..., qkv]
    shift_gu = torch.stack([shift2[:, i] @ w.gate_up.float().T for i, w in enumerate(layers)], 1)[..., gate_up]
    tables = {
        "scale1": 1 + scale1, "gate1": gate1, "scale2": 1 + scale2, "gate2": gate2,
        "shift_qkv": shift_qkv, "shift_gu": shift_gu,
        "scale_f": 1 + scale_f, "shift_out": shift_f @ out_weight.float().T + out_bias.float(),
    }  # fmt: skip
    return {name: table.contiguous() for name, table in tables.items()}
