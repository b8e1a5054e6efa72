"""``cuda.attention.short``: sequences whose keys and values fit into shared memory; ``csrc/attention_short.cu``.

One pass: a block has all keys and values of a head, and the scores of its queries in registers. A row's result does not
depend on the other rows of the call, nor on how rows are cut into blocks.
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
from phyai_backend_cuda.runtime.memory import readable

MAX_KEYS, MAX_HEAD_DIM = 256, 128
CHUNK, GROUP_THREADS = 64, 128  # keys of a chunk, and queries and threads of a warpgroup
SKEW = 16  # bytes between planes, so that neighbours begin in other banks


class Strides(ctypes.Structure):
    """Elements between sequences, rows and heads."""

    _fields_ = tuple((name, ctypes.c_longlong) for name in ("batch", "row", "head"))

    @classmethod
    def of(cls, t: torch.Tensor) -> Strides:
        return cls(*t.stride()[:3])


class Params(ctypes.Structure):
    """``Params`` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "o")),
        *((f"of_{name}", Strides) for name in ("q", "k", "v", "o")),
        *((name, ctypes.c_int) for name in ("queries", "keys", "group", "tiles")),
        ("factor", ctypes.c_float),
    )  # fmt: skip


def shared_bytes(head_dim: int, keys: int, groups: int) -> int:
    """What a block of ``groups`` warpgroups needs: planes of queries, keys and values, and zeros where a head ends
    halfway through a step of sixteen elements.

    >>> shared_bytes(72, 256, 2), shared_bytes(72, 256, 1), shared_bytes(128, 256, 2)
    (93616, 84400, 164608)
    """
    units, chunks = head_dim // 8, -(-keys // CHUNK)
    planes = (CHUNK * groups + 2 * CHUNK * chunks) * 16 + 3 * SKEW
    return units * planes + units % 2 * CHUNK * 16


def groups_for(batch: int, queries: int, heads: int, processors: int) -> int:
    """Warpgroups of a block: one while every block then finds a processor of its own, else two.

    >>> [groups_for(batch, 256, 16, 132) for batch in (1, 2, 3)], groups_for(9, 64, 16, 132)
    ([1, 1, 2], 1)
    """
    return 1 if queries <= CHUNK or batch * heads * -(-queries // CHUNK) <= processors else 2


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    heads, kv_heads, dim = (whole(facts, f"shape.{name}") for name in ("heads", "kv_heads", "head_dim"))
    processors, overlap = whole(facts, "device.sm_count", 132), bool(params.get("overlap", True))
    factor = number(facts, "attrs.scale", dim**-0.5) * math.log2(math.e)
    defines = {"HD": dim, **({"HALF": 1} if facts["dtype.q"] == "fp16" else {})}

    def kernel(keys: int, groups: int) -> Kernel:
        sizes = {"CHUNKS": -(-keys // CHUNK), "GROUPS": groups}
        shared = shared_bytes(dim, keys, groups)
        return load("attention_short.cu", "attention_short", {**defines, **sizes}, arch="sm_90a", shared_bytes=shared)

    kernel(MAX_KEYS, 2)  # what cannot be compiled is told here

    def run(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: None = None, cu_seqlens_q: None = None,
        cu_seqlens_k: None = None, out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        direct = out is not None and out.dim() == 4 and readable(out) is out
        o = out if direct and out is not None else torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if q.numel() and k.numel():
            launch(*(readable(t.reshape(-1, *t.shape[-3:])) for t in (q, k, v, o)))
        else:
            o.zero_()
        return o if direct or out is None else out.copy_(o)

    def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor) -> None:
        batch, queries, keys = len(q), q.shape[1], k.shape[1]
        groups = int(params.get("groups") or groups_for(batch, queries, heads, processors))
        tiles = -(-queries // (CHUNK * groups))
        arguments = Params(
            *(t.data_ptr() for t in (q, k, v, o)), *(Strides.of(t) for t in (q, k, v, o)), queries, keys,
            heads // kv_heads, tiles, factor,
        )  # fmt: skip
        grid, threads = (batch * tiles, heads), GROUP_THREADS * groups
        kernel(keys, groups).launch(grid, threads, (arguments,), current_stream(), overlap=overlap)

    return Prepared(run)
