"""``cuda.gemm.skinny``: few rows against a large weight, K split over programs so that all of the chip reads weights.

Every program writes its partial sums in fp32; the last one to finish a column tile adds them up in a fixed order, so
results are reproducible.
"""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from phyai.facts import Facts, whole
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_cuda.runtime.memory import contiguous, output, rows_of, settle


@triton.jit(do_not_specialize=["M"])
def _skinny(
    x, w, bias, y, parts, counters, x_step, y_step, M, N: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    m, n, k = tl.arange(0, BM), tile * BN + tl.arange(0, BN), tl.arange(0, BK)
    start = split * (K // SPLIT)
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(0, K // SPLIT, BK):
        at = start + step + k
        a = tl.load(x + m[:, None] * x_step + at[None, :], (m < M)[:, None], 0.0)
        b = tl.load(w + n[None, :].to(tl.int64) * K + at[:, None], (n < N)[None, :], 0.0)
        acc = tl.dot(a, b, acc)
    keep = (m < M)[:, None] & (n < N)[None, :]
    if SPLIT > 1:
        here = (m[:, None] * N) + n[None, :]
        tl.store(parts + split * (BM * N) + here, acc, keep)
        tl.debug_barrier()
        if tl.atomic_add(counters + tile, 1, sem="acq_rel") != SPLIT - 1:
            return
        acc = tl.zeros((BM, BN), tl.float32)
        for s in tl.static_range(SPLIT):
            acc += tl.load(parts + s * (BM * N) + here, keep, 0.0, cache_modifier=".cg")
        tl.store(counters + tile, 0)
    if BIAS:
        acc += tl.load(bias + n, n < N, 0.0).to(tl.float32)[None, :]
    tl.store(y + m[:, None] * y_step + n[None, :], acc, keep)


def split_of(n: int, k: int, block_n: int, block_k: int, programs: int) -> int:
    """The largest power of two that divides K into whole steps and needs at most ``programs`` programs.

    >>> split_of(1024, 4096, 32, 128, 132), split_of(8192, 1024, 32, 128, 132)
    (4, 1)
    """
    split = 1
    while k % (2 * split * block_k) == 0 and -(-n // block_n) * 2 * split <= programs:
        split *= 2
    return split


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    held = contiguous(weights)
    weight, bias = held["weight"], held.get("bias")
    n, k = whole(facts, "shape.N"), whole(facts, "shape.K")
    block_n, block_k = int(params.get("block_n", 32)), int(params.get("block_k", 128))
    programs = 2 * whole(facts, "device.sm_count", 132)
    split = int(params.get("split") or split_of(n, k, block_n, block_k, programs))
    tiles = -(-n // block_n)
    parts = resources.workspace("cuda.gemm.skinny.parts", 64 * n * split * 4).view(torch.float32)
    # zero before and after every launch; launches of one stream do not overlap, so all sites share it
    counters = resources.shared(
        ("cuda.gemm.skinny.counters", tiles), lambda: torch.zeros(tiles, dtype=torch.int32, device=weight.device)
    )

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y = output(x, out, *x.shape[:-1], n)
        if y.numel():
            rows, given = rows_of(x), rows_of(y)
            m = len(rows)
            block_m = 16 if m <= 16 else 32 if m <= 32 else 64
            _skinny[(tiles, split)](
                rows, weight, bias, given, parts, counters, rows.stride(0), given.stride(0), m, n, k,
                block_m, block_n, block_k, split, bias is not None, num_warps=4, num_stages=4,
            )  # fmt: skip
            settle(y, given)
        return y

    return Prepared(run, refresh=in_place(held))
