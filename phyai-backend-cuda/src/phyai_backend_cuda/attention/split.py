"""``cuda.attention_paged.split``: few queries, many keys; ``csrc/attention.cu`` at a call site.

The keys of 64 rows (queries × heads of one key head) are split over a cluster of blocks, which combine their parts
through each other's shared memory. With ``splits`` fixed a row's result does not depend on the other rows of the call.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from phyai.facts import Facts, number, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.attention.paged import Metadata, prepared, tiles_of
from phyai_backend_cuda.runtime.launch import Kernel, current_stream, load
from phyai_backend_cuda.runtime.memory import readable

WIDEST, FIXED_SPLITS = 16, 8  # a cluster of 16 blocks does not fit on every chip
SPLITS = (8, 4, 2, 1)
ROWS, TILE, THREADS = 64, 8192, 128  # rows of a cluster; bytes of 64 rows of 64; threads of a block


class Params(ctypes.Structure):
    """``Params`` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "o", "cu_seqlens", "indptr", "indices", "last")),
        *((name, ctypes.c_longlong) for name in ("k_page", "v_page")),
        *((name, ctypes.c_int) for name in ("k_key", "v_key", "k_head", "v_head")),
        *((name, ctypes.c_int) for name in ("tokens", "requests", "page_size", "heads", "causal", "window")),
        ("scale", ctypes.c_float), ("cap", ctypes.c_float),
    )  # fmt: skip


@attrs.frozen(kw_only=True)
class Scores:
    """How scores are made and masked."""

    scale: float
    soft_cap: float = 0.0
    causal: bool = False
    window: int = 0

    @classmethod
    def of(cls, facts: Facts) -> Scores:
        return cls(
            scale=number(facts, "attrs.scale", whole(facts, "shape.head_dim") ** -0.5),
            soft_cap=number(facts, "attrs.soft_cap", 0), causal=bool(facts.get("attrs.causal", False)),
            window=math.ceil(number(facts, "attrs.window", 0)),
        )  # fmt: skip


def cut_for(clusters: int, processors: int, widest: int) -> tuple[int, int]:
    """Blocks to a cluster, and tiles of keys that each has in flight: what measured fastest on an H200.

    As many blocks as find a processor of their own, and where that is eight two tiles to each; past that as many as
    fit with two to a processor, which then hide each other's latency. ``widest`` is how many clusters of 16 blocks
    can run at the same time.

    >>> cut_for(7, 132, 7), cut_for(7, 132, 0), cut_for(14, 132, 7), cut_for(28, 132, 7), cut_for(57, 132, 7)
    ((16, 1), (8, 2), (8, 2), (8, 1), (4, 1))
    """
    if WIDEST * clusters <= processors and clusters <= widest:
        return WIDEST, 1
    return next((s for s in SPLITS if s * clusters <= 2 * processors), 1), 2 if 8 * clusters <= processors else 1


def params_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, metadata: Metadata, scores: Scores
) -> Params:
    """The kernel's arguments; q and o are contiguous."""
    return Params(
        *(t.data_ptr() for t in (q, k, v, o, *metadata.tensors)), k.stride(0), v.stride(0), k.stride(1), v.stride(1),
        k.stride(2), v.stride(2), len(q), metadata.requests, k.shape[1], q.shape[1], scores.causal, scores.window,
        scores.scale, scores.soft_cap,
    )  # fmt: skip


def _prepare(
    facts: Facts, resources: Resources, cut: Callable[[int, int], tuple[int, int]], *, overlap: bool
) -> Prepared:
    """``cut(clusters, widest)``: blocks to a cluster, and tiles in flight."""
    heads, kv_heads, dim = (whole(facts, f"shape.{name}") for name in ("heads", "kv_heads", "head_dim"))
    group, scores = heads // kv_heads, Scores.of(facts)
    defines = {
        "HD": dim, "GROUP": group, "SLABS": int(bool(facts.get("attrs.single_page", False))),
        **({"HALF": 1} if facts["dtype.q"] == "fp16" else {}),
    }  # fmt: skip

    def kernel(splits: int, stages: int) -> Kernel:
        return load(
            "attention.cu", "attention", {**defines, "SPLITS": splits, "STAGES": stages}, arch="sm_90a",
            shared_bytes=dim // 64 * TILE * (1 + 2 * stages), cluster=splits,
        )  # fmt: skip

    first = kernel(*cut(1, 1))
    widest = first.clusters(THREADS) if first.cluster == WIDEST else 0

    def launch(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, o: torch.Tensor, state: Metadata) -> None:
        tiles = tiles_of(len(q), state.requests, group, ROWS)
        splits, stages = cut(tiles * kv_heads, widest)
        held = readable(q.contiguous()), readable(k_cache), readable(v_cache)
        arguments = params_of(*held, o, state, scores)
        grid = (splits, tiles, kv_heads)
        kernel(splits, stages).launch(grid, THREADS, (arguments,), current_stream(), overlap=overlap)

    return prepared(launch, resources)


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    processors = whole(facts, "device.sm_count", 132)

    def cut(clusters: int, widest: int) -> tuple[int, int]:
        splits, stages = cut_for(clusters, processors, widest)
        return int(params.get("splits") or splits), int(params.get("stages") or stages)

    return _prepare(facts, resources, cut, overlap=bool(params.get("overlap", True)))


def prepare_batch_invariant(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    processors = whole(facts, "device.sm_count", 132)

    def cut(clusters: int, widest: int) -> tuple[int, int]:
        return FIXED_SPLITS, 2 if FIXED_SPLITS * clusters <= processors else 1

    return _prepare(facts, resources, cut, overlap=True)
