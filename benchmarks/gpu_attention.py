"""``cuda.attention_paged.split`` at π0.5's shapes: checked against float64, then µs in a CUDA graph beside FlashInfer.

    python benchmarks/gpu_attention.py --out benchmarks/results/attention.json

Every figure is the time of one call among 40 in one graph, each with its own queries and cache (own memory: nothing is
found in L2), the median of 20 replays; the floor is as in ``gpu_table.py``. A part that fails is recorded and the rest
goes on.
"""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from gpu_parts import CALLS, Report, compiled, main_of, microseconds, resources
from gpu_table import BF16_RATE, floor_of

EXPERT = {"shape.heads": 8, "shape.kv_heads": 1, "shape.head_dim": 256, "dtype.q": "bf16", "device.sm_count": 132}


def metadata(queries: Sequence[int], pages: Sequence[Sequence[int]], last: Sequence[int]) -> dict[str, torch.Tensor]:
    def ends(sizes: Sequence[int]) -> torch.Tensor:
        return torch.tensor([0, *sizes]).cumsum(0).to("cuda", torch.int32)

    flat = [page for request in pages for page in request]
    return {
        "cu_seqlens_q": ends(queries), "kv_indptr": ends([len(request) for request in pages]),
        "kv_indices": torch.tensor(flat, dtype=torch.int32, device="cuda"),
        "last_page_len": torch.tensor(last, dtype=torch.int32, device="cuda"),
    }  # fmt: skip


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window: int | None, cap: float | None
) -> torch.Tensor:
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), *(t.double().repeat_interleave(group, 1) for t in (k, v))
    s = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    if cap:
        s = cap * torch.tanh(s / cap)
    p = torch.arange(len(q), device="cuda")[:, None] + len(k) - len(q)
    j = torch.arange(len(k), device="cuda")[None]
    keep = torch.ones(len(q), len(k), dtype=torch.bool, device="cuda")
    if causal:
        keep &= j <= p
    if window:
        keep &= p - j < window
    weights = torch.softmax(s.masked_fill(~keep, -math.inf), -1).nan_to_num(0) if len(k) else s
    return torch.einsum("hqk,khd->qhd", weights, v)


def prepare(facts: dict[str, Any], params: dict[str, Any]) -> Any:
    from phyai.facts import Facts
    from phyai_backend_cuda.attention import split

    return split.prepare(Facts(facts), {}, params, resources())


def invariant(facts: dict[str, Any]) -> Any:
    from phyai.facts import Facts
    from phyai_backend_cuda.attention import split

    return split.prepare_batch_invariant(Facts(facts), {}, {}, resources())


def check(report: Report) -> None:
    """Right, the same twice, right in a graph after other lengths were written, zeros where nothing is seen."""
    cases: list[dict[str, Any]] = [
        {"queries": [50], "keys": [1018], "splits": splits, "stages": stages}
        for splits in (1, 2, 4, 8, 16)
        for stages in (1, 2)
    ]
    cases += [
        {"queries": [10], "keys": [600]},
        {"queries": [50] * 8, "keys": [1018, 700, 64, 65, 1, 0, 900, 1000]},
        {"queries": [3, 0, 50], "keys": [17, 33, 1020], "tail": 5, "splits": 4},
        {"queries": [7, 30], "keys": [90, 900], "page": 16, "causal": True, "splits": 4},
        {"queries": [7, 30], "keys": [5, 900], "page": 48, "causal": True, "window": 100, "cap": 3.0, "splits": 2},
        {"queries": [9, 60], "keys": [300, 200], "heads": 6, "kv_heads": 2, "dim": 128, "dtype": torch.float16},
        {"queries": [9, 60], "keys": [300, 200], "heads": 4, "kv_heads": 4, "dim": 64, "splits": 8, "window": 31},
    ]
    for case in cases:
        report.attempt("check", case, lambda case=case: checked(**case))


def checked(
    queries: list[int], keys: list[int], heads: int = 8, kv_heads: int = 1, dim: int = 256, page: int | None = None,
    tail: int = 0, causal: bool = False, window: int | None = None, cap: float | None = None,
    dtype: torch.dtype = torch.bfloat16, **params: Any,
) -> dict[str, Any]:  # fmt: skip
    size = page or 1024
    counts = [1 if page is None else -(-n // size) for n in keys]
    total = sum(counts) + 3
    order = torch.randperm(total)[: sum(counts)].tolist()
    pages, at = [], 0
    for count in counts:
        pages.append(order[at : at + count])
        at += count
    last = [n if page is None else (n - 1) % size + 1 if n else 0 for n in keys]
    k, v = (torch.randn(total, size, kv_heads, dim, device="cuda").to(dtype) for _ in range(2))
    q = torch.randn(sum(queries) + tail, heads, dim, device="cuda").to(dtype)
    facts = {
        "shape.heads": heads, "shape.kv_heads": kv_heads, "shape.head_dim": dim, "attrs.single_page": page is None,
        "dtype.q": "fp16" if dtype == torch.float16 else "bf16", "device.sm_count": 132, "attrs.causal": causal,
        **({"attrs.window": window} if window else {}), **({"attrs.soft_cap": cap} if cap else {}),
    }  # fmt: skip
    ready = prepare(facts, params)
    held = metadata(queries, pages, last)
    state = ready.plan(held)
    y, again = ready.run(q, k, v, state=state), ready.run(q, k, v, state=state)

    def errors(y: torch.Tensor, lengths: list[int]) -> float:
        want, row = torch.zeros(q.shape, dtype=torch.float64, device="cuda"), 0
        for count, request, n in zip(queries, pages, lengths, strict=True):
            flat = [cache[request].flatten(0, 1)[:n] for cache in (k, v)]
            want[row : row + count] = reference(q[row : row + count], flat[0], flat[1], causal, window, cap)
            row += count
        assert y.isfinite().all(), "not finite"
        assert not y[row:].any(), "rows of no request are not zero"
        return float((y.double() - want).norm() / want.norm())

    found: dict[str, Any] = {"error": errors(y, keys), "same": torch.equal(y, again)}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = ready.run(q, k, v, state=state)
    if page is None:
        other = [max(0, n - 37) for n in keys]
        held["last_page_len"].copy_(torch.tensor(other))
        ready.plan(held)
        graph.replay()
        found["replayed with other lengths"] = errors(replayed, other)
    if found["error"] > 6e-3 or not found["same"]:
        raise AssertionError(found)
    return found


def times(report: Report) -> None:
    shapes = [([50], 1018), ([10], 600), ([51], 818), ([50] * 2, 1018), ([50] * 4, 1018), ([50] * 8, 1018)]
    for queries, keys in shapes:
        b = len(queries)
        facts = {**EXPERT, "shape.pages": b, "shape.page_size": 1024, "attrs.single_page": True}
        held = metadata(queries, [[i] for i in range(b)], [keys] * b)
        what, nbytes = f"{b} x {queries[0]} x {keys}", 2 * 256 * (2 * b * keys + 2 * 8 * sum(queries))
        floor = round(floor_of(nbytes, 4 * sum(queries) * keys * 8 * 256, BF16_RATE) * 1e6, 2)

        def calls(ready: Any, held: dict[str, torch.Tensor], b: int, rows: int) -> list[Callable[[], Any]]:
            state = ready.plan(held)
            inputs = [(normal(rows, 8, 256), normal(b, 1024, 1, 256), normal(b, 1024, 1, 256)) for _ in range(CALLS)]
            return [lambda i=i: ready.run(*i, state=state) for i in inputs]

        variants = [{"splits": s, "stages": stages} for s in (1, 2, 4, 8, 16) for stages in (1, 2)]
        for params in [{}, *variants, {"splits": 16, "overlap": False}, {"splits": 8, "overlap": False}]:
            if b > 1 and params.get("splits", 1) == 16:
                continue
            row = {"call": what, "kernel": "cuda.attention_paged.split", "floor_us": floor, **params}
            report.attempt(
                "time", row, lambda p=params: {"us": microseconds(calls(prepare(facts, p), held, b, sum(queries)))}
            )
        report.attempt(
            "time", {"call": what, "kernel": "cuda.attention_paged.split_batch_invariant", "floor_us": floor},
            lambda: {"us": microseconds(calls(invariant(facts), held, b, sum(queries)))},
        )  # fmt: skip
        planned = {**facts, "shape.T": sum(queries)}
        report.attempt(
            "time", {"call": what, "kernel": "flashinfer.attention_paged.fa2", "floor_us": floor},
            lambda: {"us": microseconds(calls(flashinfer(planned), host(held), b, sum(queries)))},
        )  # fmt: skip


def host(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in held.items()}


def flashinfer(facts: dict[str, Any]) -> Any:
    from phyai.facts import Facts
    from phyai_backend_flashinfer.attention_paged import prepare_fa2

    return prepare_fa2(Facts(facts), {}, {}, resources())


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def ahead(pool: Any) -> None:
    """Compile what will be needed side by side."""
    base = {"HD": 256, "GROUP": 8, "SLABS": 1}
    compiled(pool, "attention.cu", [{**base, "SPLITS": s, "STAGES": n} for s in (1, 2, 4, 8, 16) for n in (1, 2)])


if __name__ == "__main__":
    main_of(argparse.ArgumentParser(description=__doc__), {"check": check, "times": times}, ahead)
