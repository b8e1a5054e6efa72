"""``cuda.attention_paged.prefill`` at the shapes of π0.5's prefix: checked against float64, then µs beside its peers.

    python benchmarks/gpu_attention_prefill.py --out benchmarks/results/attention_prefill.json

Checks run in processes of their own, each with a limit. Every figure is the time of one call among 40 in one CUDA
graph, the median of 20 replays: *cold*, each with its own queries and cache; *warm*, all with the same, as in a model,
where they have just been written.
"""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from gpu_attention import host, metadata, normal, reference
from gpu_parts import CALLS, Report, compiled, main_of, microseconds, resources
from gpu_table import BF16_RATE, floor_of

PREFIX = {
    "shape.heads": 8, "shape.kv_heads": 1, "shape.head_dim": 256, "dtype.q": "bf16", "device.sm_count": 132,
    "attrs.single_page": True, "attrs.causal": False,
}  # fmt: skip
VARIANTS: list[dict[str, Any]] = [{}, {"splits": 1}, {"splits": 2}]


def prepare(params: dict[str, Any], dtype: torch.dtype = torch.bfloat16, **facts: Any) -> Any:
    from phyai.facts import Facts
    from phyai_backend_cuda.attention import prefill

    return prefill.prepare(
        Facts({**PREFIX, "dtype.q": "fp16" if dtype == torch.float16 else "bf16", **facts}), {}, params, resources()
    )


CASES: list[dict[str, Any]] = [
    {"queries": [968], "keys": [968]},
    {"queries": [712], "keys": [712], "size": 762},
    {"queries": [818], "keys": [818]},
    {"queries": [1], "keys": [1]},
    {"queries": [17], "keys": [65], "tail": 5},
    {"queries": [300], "keys": [129], "tail": 700},
    {"queries": [40, 0, 500, 3], "keys": [64, 10, 700, 0], "tail": 9},
    {"queries": [1000], "keys": [40], "size": 50},
    {"queries": [333], "keys": [500], "spread": 6.0},
    {"queries": [500], "keys": [500], "dtype": torch.float16, "spread": 3.0},
]


def one_check(index: int) -> dict[str, Any]:
    """Of variant ``index``: every case, the same twice, right in a graph after other lengths were written."""
    params, worst = VARIANTS[index], {}
    torch.manual_seed(index)
    for at, case in enumerate(CASES):
        queries, keys, size = case["queries"], case["keys"], case.get("size", max(*case["keys"], 8) + 50)
        dtype, spread, b = case.get("dtype", torch.bfloat16), case.get("spread", 1.0), len(queries)
        order = torch.randperm(b + 2)[:b].tolist()
        k, v = (torch.randn(b + 2, size, 1, 256, device="cuda").to(dtype) * spread for _ in range(2))
        q = torch.randn(sum(queries) + case.get("tail", 0), 8, 256, device="cuda").to(dtype)
        for page, n in zip(order, keys, strict=True):
            k[page, n:] = v[page, n:] = float("nan")
        q[sum(queries) :] = float("nan")
        ready, held = prepare(params, dtype), metadata(queries, [[page] for page in order], keys)
        state = ready.plan(held)
        y, again = ready.run(q, k, v, state=state), ready.run(q, k, v, state=state)

        def error(y: torch.Tensor, lengths: list[int]) -> float:
            want, row = torch.zeros(q.shape, dtype=torch.float64, device="cuda"), 0
            for count, page, n in zip(queries, order, lengths, strict=True):
                want[row : row + count] = reference(q[row : row + count], k[page, :n], v[page, :n], False, None, None)
                row += count
            assert y.isfinite().all(), f"case {at}: {int((~y.isfinite()).sum())} values are not finite"
            assert not y[row:].any(), f"case {at}: rows of no request are not zero"
            some = want.norm(dim=-1)
            scale = some[some > 0].mean() if (some > 0).any() else 1.0
            return float(((y.double() - want).norm(dim=-1) / scale).max())

        found = error(y, keys)
        assert torch.equal(y, again), f"case {at}: not the same twice"
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replayed = ready.run(q, k, v, state=state)
        other = [max(0, n - 37) for n in keys]
        held["last_page_len"].copy_(torch.tensor(other))
        ready.plan(held)
        graph.replay()
        worst[at] = [round(found, 5), round(error(replayed, other), 5)]
    if max(max(pair) for pair in worst.values()) > 2e-2:
        raise AssertionError(f"errors by case {worst}")
    return {"worst rows' relative errors": worst}


def check(report: Report) -> None:
    def run(index: int) -> dict[str, Any]:
        command = [sys.executable, sys.argv[0], "--out", "unused", "--check", str(index)]
        done = subprocess.run(command, timeout=60, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else done.returncode)
        return dict(json.loads(done.stdout.splitlines()[-1]))

    with ThreadPoolExecutor(9) as pool:
        futures = [pool.submit(run, i) for i in range(len(VARIANTS))]
        for params, future in zip(VARIANTS, futures, strict=True):
            report.attempt("check", params, future.result)


def peers(facts: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    from phyai.facts import Facts

    def torch_row(name: str) -> Any:
        from phyai_backend_reference.torch_rows import attention_paged

        return getattr(attention_paged, name)(Facts(facts), {}, {}, resources())

    def flashinfer(name: str) -> Any:
        from phyai_backend_flashinfer import attention_paged

        return getattr(attention_paged, name)(Facts(facts), {}, {}, resources())

    def split() -> Any:
        from phyai_backend_cuda.attention.split import prepare

        return prepare(Facts(facts), {}, {}, resources())

    few = {"cuda.attention_paged.split": split} if facts["shape.T"] <= 512 else {}
    return few | {
        "torch.attention_paged.sdpa_cudnn": lambda: torch_row("prepare_sdpa_cudnn"),
        "torch.attention_paged.sdpa_flash": lambda: torch_row("prepare_sdpa_flash"),
        "flashinfer.attention_paged.fa3": lambda: flashinfer("prepare_fa3"),
        "flashinfer.attention_paged.fa2": lambda: flashinfer("prepare_fa2"),
    }


def times(report: Report) -> None:
    for b, tokens in ((1, 968), (1, 712), (1, 818), (1, 512), (1, 256), (1, 1218), (8, 968)):
        page, rows = tokens + 50, b * tokens
        dims = {"shape.T": rows, "shape.pages": b, "shape.page_size": page}
        facts = {**PREFIX, **dims, "attrs.fixed_lengths": True}
        held = metadata([tokens] * b, [[i] for i in range(b)], [tokens] * b)
        inputs = [
            (normal(rows, 8, 256), normal(b, page, 1, 256), normal(b, page, 1, 256))
            for _ in range(CALLS if b == 1 else 8)
        ]
        floor = floor_of(2 * 256 * (2 * rows + 2 * 8 * rows), 4 * rows * tokens * 8 * 256, BF16_RATE)

        def both(ready: Any, lengths: dict[str, torch.Tensor]) -> dict[str, float]:
            state = ready.plan(lengths)

            def calls(warm: bool) -> list[Callable[[], Any]]:
                return [lambda i=inputs[0 if warm else n]: ready.run(*i, state=state) for n in range(len(inputs))]

            return {"us": microseconds(calls(False)), "warm_us": microseconds(calls(True))}

        todo: list[tuple[str, dict[str, Any], Callable[[], Any]]] = [
            (name, {}, make) for name, make in peers(facts).items()
        ]
        todo += [
            ("cuda.attention_paged.prefill", {**params, "default": not params}, lambda p=params: prepare(p, **facts))
            for params in VARIANTS
        ]
        for name, params, make in todo:
            lengths = host(held) if name.startswith("flashinfer") else held
            row = {"call": f"{b} x {tokens} x {tokens}", "kernel": name, "floor_us": round(floor * 1e6, 2), **params}
            report.attempt("time", row, lambda: both(make(), lengths))


def ahead(pool: Any) -> None:
    base = [{"GROUP": 8, "SPLITS": splits} for splits in (1, 2)]
    compiled(pool, "attention_prefill.cu", [*base, *({**defines, "HALF": 1} for defines in base)])


if __name__ == "__main__":
    if "--check" in sys.argv:
        print(json.dumps(one_check(int(sys.argv[sys.argv.index("--check") + 1]))))
    else:
        main_of(argparse.ArgumentParser(description=__doc__), {"check": check, "times": times}, ahead)
