"""``cuda.attention_paged.prefill``: many queries, one page of keys to a request; ``csrc/attention_prefill.cu``.

Lengths are read on the device: a captured graph serves other lengths than it was captured with.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from phyai.facts import Facts, number, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.attention.split import PLAN_KEY, Metadata, planner
from phyai_backend_cuda.runtime.launch import Kernel, current_stream, load
from phyai_backend_cuda.runtime.memory import readable
from phyai_backend_cuda.runtime.tensor_map import box_map

ROWS, HEAD_DIM, THREADS = 128, 256, 384  # rows (queries × heads of one key head) and threads of a block
SLOTS: Mapping[int, int] = {64: 5, 80: 4, 96: 3}  # tiles of so many keys that fit beside the queries


class Params(ctypes.Structure):
    """``Params`` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("cu_seqlens", "indices", "last", "o")),
        *((name, ctypes.c_int) for name in ("tokens", "requests", "heads")), ("factor", ctypes.c_float),
    )  # fmt: skip


@attrs.frozen(kw_only=True)
class Cut:
    """How one launch is cut: the kernel's constants."""

    splits: int = 2  # blocks that share the keys of the same rows
    share: int = 1  # blocks with rows of their own that fetch tiles of keys for each other
    keys: int = 64  # of a tile
    held: int = 0  # sixteens of a query that stay in registers
    pingpong: bool = False  # the two halves of a block multiply in turns

    @property
    def cluster(self) -> int:
        return self.splits * self.share

    @property
    def span(self) -> int:
        """Rows of a cluster."""
        return ROWS * self.share

    @property
    def shared_bytes(self) -> int:
        """Queries, the ring of tiles, what blocks exchange beside sums, barriers."""
        slots = SLOTS[self.keys]
        return (
            ROWS * HEAD_DIM * 2 + slots * self.keys * HEAD_DIM * 2 + (128 * 16 if self.splits > 1 else 0)
            + 8 * (2 * slots + HEAD_DIM // 64 + 1)
        )  # fmt: skip

    def defines(self, group: int, half: bool) -> dict[str, int]:
        return {
            "KEYS": self.keys, "SLOTS": SLOTS[self.keys], "GROUP": group, "SPLITS": self.splits, "SHARE": self.share,
            "HELD": self.held, "PINGPONG": int(self.pingpong), **({"HALF": 1} if half else {}),
        }  # fmt: skip

    def kernel(self, group: int, half: bool) -> Kernel:
        return load(
            "attention_prefill.cu", "attention_prefill", self.defines(group, half), arch="sm_90a",
            shared_bytes=self.shared_bytes, cluster=self.cluster,
        )  # fmt: skip


def clusters_of(tokens: int, requests: int, group: int, span: int) -> int:
    """At most how many clusters of ``span`` rows the requests have, whatever their lengths.

    >>> clusters_of(968, 1, 8, 256), clusters_of(968, 1, 8, 128), clusters_of(200, 2, 8, 128), clusters_of(1, 9, 8, 128)
    (31, 61, 14, 1)
    """
    return (tokens * group + min(requests, tokens) * (span - 1)) // span


def cut_for(tokens: int, requests: int, group: int, kv_heads: int, processors: int) -> Cut:
    blocks = clusters_of(tokens, requests, group, ROWS) * kv_heads
    return Cut(splits=2 if 2 * blocks <= processors else 1)


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    heads, kv_heads = (whole(facts, f"shape.{name}") for name in ("heads", "kv_heads"))
    group, half, processors = heads // kv_heads, facts["dtype.q"] == "fp16", whole(facts, "device.sm_count", 132)
    scale = number(facts, "attrs.scale", HEAD_DIM**-0.5)
    overlap = bool(params.get("overlap", True))
    given = {name: params[name] for name in ("splits", "share", "keys", "held", "pingpong") if name in params}

    def run(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, out: torch.Tensor | None = None,
        state: Metadata | None = None,
    ) -> torch.Tensor:  # fmt: skip
        assert state is not None, "attention_paged runs with the state that plan(metadata) returned"
        direct = out is not None and out.is_contiguous() and not out.data_ptr() % 16
        o = out if direct and out is not None else torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if not state.requests:
            o.zero_()
        elif len(q):
            cut = attrs.evolve(cut_for(len(q), state.requests, group, kv_heads, processors), **given)
            q, k, v = readable(q), readable(k_cache), readable(v_cache)
            cu_seqlens, _, indices, last = (t.data_ptr() for t in state.tensors)
            arguments = (
                box_map(q, (ROWS // group, group)), box_map(k, (1, cut.keys, 1)), box_map(v, (1, cut.keys, 1)),
                Params(
                    cu_seqlens, indices, last, o.data_ptr(), len(q), state.requests, heads, scale * math.log2(math.e)
                ),
            )  # fmt: skip
            grid = (clusters_of(len(q), state.requests, group, cut.span) * cut.cluster, kv_heads)
            cut.kernel(group, half).launch(grid, THREADS, arguments, current_stream(), overlap=overlap)
        return o if direct or out is None else out.copy_(o)

    return Prepared(run, plan=planner(resources), plan_key=PLAN_KEY)
