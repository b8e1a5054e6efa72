"""Host side of ``csrc/expert.cu``: packed weights, modulation tables, scratch, and the launch.

The modulations of every denoising step depend on the step alone, so ``(1 + scale)``, the gate, and
``shift · Wᵀ`` of each adaRMS norm are tables made once; see the kernel's head for what it computes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from phyai_backend_cuda.launch import current_stream, load
from phyai_backend_cuda.packing import pack_tiles, rope_pairs

if TYPE_CHECKING:
    import torch

BLOCKS, RANKS = 128, 8
WIDTH, HEADS, HEAD_DIM, INTERMEDIATE, ACTION_DIM = 1024, 8, 256, 4096, 32
MAX_QUERIES = 56
SHARED_BYTES = 16 * 7168 + 1024 + 14 * 8192 + 1024


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

    Row ``n = 8j + 2q + t`` of block b's 64 is the gate (t = 0) or up (t = 1) row of column ``32b + 8q + j``: then a
    thread of the accumulator holds both factors of eight adjacent outputs.
    """
    import torch

    n = torch.arange(64)
    column = (n % 8 // 2) * 8 + n // 8
    block = torch.arange(BLOCKS)[:, None]
    return ((n % 2)[None] * INTERMEDIATE + block * 32 + column[None]).flatten().to(device)


def attention_order(device: Any = None) -> torch.Tensor:
    """Columns of the o weight in the kernel's order: within a head, unit ``8c + 4i + q`` of eight holds columns
    ``64c + 32i + 8j + 2q`` and + 1 for j = 0..3, which is what one thread has of the attention's accumulator."""
    import torch

    p = torch.arange(HEAD_DIM)
    unit, j, e = p // 8, p % 8 // 2, p % 2
    within = unit // 8 * 64 + unit // 4 % 2 * 32 + j * 8 + unit % 4 * 2 + e
    return (torch.arange(HEADS)[:, None] * HEAD_DIM + within[None]).flatten().to(device)


def first_octet(block: int) -> int:
    """The first of block ``block``'s octets (eight rows) of the 320 of qkv: 64 blocks have three, 64 have two."""
    return 3 * block if block < 64 else 192 + 2 * (block - 64)


def rotate_chunks(tiles: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """``[B, chunks, ...]`` with block b's chunks from ``first[b]`` on: blocks that read the same activations begin at
    different ones."""
    import torch

    chunks = tiles.shape[1]
    index = (torch.arange(chunks, device=tiles.device)[None] + first.to(tiles.device)[:, None]) % chunks
    return tiles[torch.arange(tiles.shape[0], device=tiles.device)[:, None], index]


def pack_qkv(weight: torch.Tensor) -> torch.Tensor:
    """``[2560, 1024]`` → flat: per block, per chunk of K, the block's octets."""
    import torch

    tiles = pack_tiles(weight[qkv_order(weight.device)], 8)  # [320, 16, 8, 64]
    block = torch.arange(BLOCKS) // 4
    wide, narrow = tiles[:192].reshape(64, 3, 16, 512), tiles[192:].reshape(64, 2, 16, 512)
    parts = (rotate_chunks(t.transpose(1, 2), first) for t, first in ((wide, block[:64]), (narrow, block[64:])))
    return torch.cat([part.flatten() for part in parts])


def pack_by_rank(weight: torch.Tensor) -> torch.Tensor:
    """``[1024, K]`` → flat: per eighth of K, per 64 rows, the chunks."""
    import torch

    tiles = pack_tiles(weight, 64)  # [16, K / 64, 64, 64]
    ranks = tiles.reshape(16, RANKS, -1, 64, 64).transpose(0, 1).reshape(BLOCKS, -1, 64, 64)
    return rotate_chunks(ranks, torch.arange(BLOCKS) % 16 // 4).flatten()


def pack_layer(layer: LayerWeights) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The four flat packed weights of a layer, in the order of ``LayerWeights``."""
    import torch

    gate_up = pack_tiles(layer.gate_up[gate_up_order(layer.gate_up.device)], 64)
    return (
        pack_qkv(layer.qkv),
        pack_by_rank(layer.o[:, attention_order(layer.o.device)]),
        rotate_chunks(gate_up, torch.arange(BLOCKS) // 4).flatten(),
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


PARAM_FIELDS: tuple[str, ...] = (
    "wqkv", "wo", "wgu", "wd", "in_w", "in_b", "out_w",
    "scale1", "gate1", "scale2", "gate2", "shift_qkv", "shift_gu", "scale_f", "shift_out", "dt", "cos_sin", "lengths",
    "actions", "kbuf", "vbuf", "xs1", "xs2", "qbuf", "obuf", "act", "opart", "ml", "part", "ssq", "counters",
    "trace",
)  # fmt: skip


class _Params(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in PARAM_FIELDS),
        ("layers", ctypes.c_int), ("steps", ctypes.c_int), ("kv_tiles", ctypes.c_int), ("eps", ctypes.c_float),
    )  # fmt: skip


class Expert:
    """All denoising steps of the expert for up to ``capacity`` keys, as one launch.

    ``run`` updates ``actions`` ``[M, 32]`` fp32 in place. ``lengths`` (int32, on the device) holds the number of
    prefix keys and the position of the first query; ``cos_sin`` is ``[P, 256]`` fp32.
    """

    def __init__(
        self, layers: Sequence[LayerWeights], tables: dict[str, torch.Tensor], *, in_weight: torch.Tensor,
        in_bias: torch.Tensor, out_weight: torch.Tensor, dt: torch.Tensor, cos_sin: torch.Tensor, queries: int,
        capacity: int, eps: float, defines: dict[str, int] | None = None,
        cooperative: bool = True,
    ) -> None:  # fmt: skip
        import torch

        if not 1 <= queries <= MAX_QUERIES:
            raise ValueError(f"queries is {queries}; the kernel takes 1 to {MAX_QUERIES}")
        device = in_weight.device
        rows, tiles, n = -(-queries // 8) * 8, -(-capacity // 64), len(layers)
        self.queries, self.tiles, self.layers = queries, tiles, n
        packed = [torch.stack(parts) for parts in zip(*(pack_layer(layer) for layer in layers), strict=True)]

        def zeros(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.tensors: dict[str, torch.Tensor] = {
            **dict(zip(("wqkv", "wo", "wgu", "wd"), packed, strict=True)),
            "in_w": in_weight.float().contiguous(), "in_b": in_bias.float().contiguous(),
            "out_w": out_weight.bfloat16().contiguous(), **tables, "dt": dt.float().contiguous(),
            "cos_sin": cos_sin.float().contiguous(), "lengths": zeros(2, dtype=torch.int32),
            "actions": zeros(queries, ACTION_DIM, dtype=torch.float32),
            "kbuf": zeros(n, tiles, 4 * 8192), "vbuf": zeros(n, tiles, 4 * 8192),
            "xs1": zeros(16, rows * 128), "xs2": zeros(16, rows * 128), "act": zeros(64, rows * 128),
            "qbuf": zeros(32, rows * 128), "obuf": zeros(32, rows * 128),
            "opart": zeros(BLOCKS, queries, 2 * HEAD_DIM), "ml": zeros(BLOCKS, 64, 8),
            # exchanged without a barrier: all ones is "not written yet", and every launch leaves it so
            "part": zeros(BLOCKS, RANKS, 56, 32).fill_(255),
            "ssq": zeros(4, rows, 128), "counters": zeros(896, dtype=torch.int32),
            "trace": zeros(BLOCKS, 1024, dtype=torch.int64),
        }  # fmt: skip
        pointers = {name: self.tensors[name].data_ptr() for name in PARAM_FIELDS}
        self._params = _Params(**pointers, layers=n, steps=dt.numel(), kv_tiles=tiles, eps=eps)
        macros = {"MQ": queries, **(defines or {})}
        self._kernel = load("expert.cu", "expert", macros, arch="sm_90a", shared_bytes=SHARED_BYTES)
        self._pack = load("expert.cu", "pack_kv", macros, arch="sm_90a")
        self._pointers: torch.Tensor | None = None
        self._cooperative = cooperative

    def bind_cache(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """The prefix's cache per layer, ``[keys, 256]`` bf16 with one row stride for all."""
        import torch

        strides = {t.stride(0) for t in (*keys, *values)}
        if len(strides) != 1:
            raise ValueError(f"the caches' row strides differ: {sorted(strides)}")
        self._stride = strides.pop()
        pointers = [[t.data_ptr() for t in keys], [t.data_ptr() for t in values]]
        self._pointers = torch.tensor(pointers, dtype=torch.int64, device=keys[0].device)

    def load_prefix(self) -> None:
        """Copy the bound cache's first ``lengths[0]`` keys into the kernel's layout."""
        if self._pointers is None:
            raise RuntimeError("bind_cache comes before load_prefix")
        bound = (self._pointers[0], self._pointers[1], *(self.tensors[n] for n in ("lengths", "kbuf", "vbuf")))
        arguments = (*(ctypes.c_void_p(t.data_ptr()) for t in bound), ctypes.c_int(self._stride))
        self._pack.launch((self.tiles, self.layers), 256, arguments, current_stream())

    def run(self) -> torch.Tensor:
        """Every step; ``tensors["actions"]`` holds the noise before and the actions after."""
        self.tensors["counters"].zero_()
        self.tensors["ssq"].zero_()
        self._kernel.launch((BLOCKS,), 160, (self._params,), current_stream(), cooperative=self._cooperative)
        return self.tensors["actions"]
