"""``cuda.attention.short``: sequences whose keys and values fit into shared memory; ``csrc/attention_short.cu``.

A block has all keys and values of a head, and the scores of its queries in registers. A row's result does not depend on
the other rows of the call, nor on how rows are cut into blocks.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts, number, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.runtime.launch import Kernel, current_stream, load
from phyai_backend_cuda.runtime.memory import described
from phyai_backend_cuda.runtime.tensor_map import TensorMap, box_map

ROWS, THREADS = 64, 128  # keys of a chunk, queries and threads of a warpgroup
MAX_SHARED = 227 * 1024  # bytes of a block


class Params(ctypes.Structure):
    """``Params`` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("queries", "keys", "group", "tiles")), ("factor", ctypes.c_float),
    )  # fmt: skip


def widths(head_dim: int) -> tuple[int, ...]:
    """Elements of the parts that a row of a head lies in: whole ones of 64, and the last with zeros behind it.

    >>> widths(72), widths(64), widths(104), widths(40)
    ((64, 16), (64,), (64, 64), (64,))
    """
    whole_parts, last = divmod(head_dim - 1, 64)
    return (*[64] * whole_parts, next(width for width in (16, 32, 64) if last < width))


def shared_bytes(head_dim: int, keys: int, groups: int) -> int:
    """What a block of ``groups`` warpgroups needs: queries, keys and values in tiles of 64 rows, and barriers.

    >>> shared_bytes(72, 256, 2), shared_bytes(72, 256, 1), shared_bytes(128, 320, 2) <= MAX_SHARED
    (102464, 92224, True)
    """
    chunks = -(-keys // ROWS)
    return (groups + 2 * chunks) * ROWS * 2 * sum(widths(head_dim)) + 2 * 8 * chunks


def groups_for(batch: int, queries: int, keys: int, heads: int, head_dim: int, processors: int) -> int:
    """Warpgroups of a block: what measured fastest on an H200.

    One while every block then finds a processor of its own; one where a row is a single part and two such blocks fit on
    a processor, which hide each other's waits; else two, which share what they wait for.

    >>> [groups_for(n, 256, 256, 16, 72, 132) for n in (1, 2, 3)], groups_for(3, 256, 256, 16, 64, 132)
    ([1, 1, 2], 1)
    """
    alone = queries <= ROWS or batch * heads * -(-queries // ROWS) <= processors
    pairs = head_dim <= 64 and 2 * (shared_bytes(head_dim, keys, 1) + 1024) <= MAX_SHARED + 1024
    return 1 if alone or pairs else 2


def maps_of(t: torch.Tensor) -> list[TensorMap]:
    """Of every part of a head's rows; 64 rows to a box."""
    by_head = t.transpose(1, 2)
    return [box_map(by_head, (1, 1, ROWS), width * 2) for width in widths(t.shape[-1])]


def maps_argument(*tensors: torch.Tensor) -> ctypes.Array[ctypes.c_char]:
    """``Maps`` of the kernel."""
    raw = b"".join(bytes(part) for t in tensors for part in maps_of(t))
    return ctypes.create_string_buffer(raw, len(raw))


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    heads, kv_heads, dim = (whole(facts, f"shape.{name}") for name in ("heads", "kv_heads", "head_dim"))
    processors = whole(facts, "device.sm_count", 132)
    factor = number(facts, "attrs.scale", dim**-0.5) * math.log2(math.e)
    defines = {"HD": dim, **({"HALF": 1} if facts["dtype.q"] == "fp16" else {})}

    def kernel(keys: int, groups: int) -> Kernel:
        sizes = {"CHUNKS": -(-keys // ROWS), "GROUPS": groups}
        shared = shared_bytes(dim, keys, groups)
        return load("attention_short.cu", "attention_short", {**defines, **sizes}, arch="sm_90a", shared_bytes=shared)

    kernel(256, 2)  # what cannot be compiled is told here

    def run(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: None = None, cu_seqlens_q: None = None,
        cu_seqlens_k: None = None, out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        direct = out is not None and out.dim() == 4 and described(out) is out
        o = out if direct and out is not None else torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if q.numel() and k.numel():
            launch(*(described(t.reshape(-1, *t.shape[-3:])) for t in (q, k, v, o)))
        else:
            o.zero_()
        return o if direct or out is None else out.copy_(o)

    def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor) -> None:
        batch, queries, keys = len(q), q.shape[1], k.shape[1]
        groups = int(params.get("groups") or groups_for(batch, queries, keys, heads, dim, processors))
        tiles = -(-queries // (ROWS * groups))
        arguments = maps_argument(q, k, v, o), Params(queries, keys, heads // kv_heads, tiles, factor)
        grid, threads = (batch * tiles, heads), THREADS * groups
        kernel(keys, groups).launch(grid, threads, arguments, current_stream(), overlap=True)

    return Prepared(run)
