"""``cuda.attention_paged.prefill``: many queries, one page of keys to a request; ``csrc/attention_prefill.cu``.

Lengths are read on the device: a captured graph serves other lengths than it was captured with.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts, number, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.attention.paged import Metadata, prepared, tiles_of
from phyai_backend_cuda.runtime.launch import Kernel, current_stream, load
from phyai_backend_cuda.runtime.memory import described
from phyai_backend_cuda.runtime.tensor_map import box_map

ROWS, HEAD_DIM, THREADS = 128, 256, 384  # rows (queries × heads of one key head) and threads of a block
KEYS, SLOTS = 64, 5  # keys of a tile, and tiles that fit beside the queries


class Params(ctypes.Structure):
    """``Params`` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("cu_seqlens", "indices", "last", "o")),
        *((name, ctypes.c_int) for name in ("tokens", "requests", "heads")), ("factor", ctypes.c_float),
    )  # fmt: skip


def shared_bytes(splits: int) -> int:
    """Queries, the ring of tiles, what blocks exchange beside sums, barriers."""
    exchanged = 128 * 16 if splits > 1 else 0
    return (ROWS + SLOTS * KEYS) * HEAD_DIM * 2 + exchanged + 8 * (2 * SLOTS + HEAD_DIM // 64 + 1)


def splits_for(tiles: int, processors: int) -> int:
    """Blocks that share the keys of a tile of rows: two where each finds a processor of its own, which measured
    fastest on an H200.

    >>> splits_for(61, 132), splits_for(66, 132), splits_for(77, 132), splits_for(488, 132)
    (2, 2, 1, 1)
    """
    return 2 if 2 * tiles <= processors else 1


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    heads, kv_heads = (whole(facts, f"shape.{name}") for name in ("heads", "kv_heads"))
    group, half, processors = heads // kv_heads, facts["dtype.q"] == "fp16", whole(facts, "device.sm_count", 132)
    factor = number(facts, "attrs.scale", HEAD_DIM**-0.5) * math.log2(math.e)

    def kernel(splits: int) -> Kernel:
        return load(
            "attention_prefill.cu", "attention_prefill",
            {"GROUP": group, "SPLITS": splits, **({"HALF": 1} if half else {})}, arch="sm_90a",
            shared_bytes=shared_bytes(splits), cluster=splits,
        )  # fmt: skip

    kernel(int(params.get("splits") or 2))  # what does not compile is known now; a batch's other one at its first call

    def launch(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, o: torch.Tensor, state: Metadata) -> None:
        q, k, v = described(q), described(k_cache), described(v_cache)
        cu_seqlens, _, indices, last = (t.data_ptr() for t in state.tensors)
        arguments = (
            box_map(q, (ROWS // group, group)), box_map(k, (1, KEYS, 1)), box_map(v, (1, KEYS, 1)),
            Params(cu_seqlens, indices, last, o.data_ptr(), len(q), state.requests, heads, factor),
        )  # fmt: skip
        tiles = tiles_of(len(q), state.requests, group, ROWS)
        splits = int(params.get("splits") or splits_for(tiles * kv_heads, processors))
        kernel(splits).launch((splits * tiles, kv_heads), THREADS, arguments, current_stream(), overlap=True)

    return prepared(launch, resources)
