"""``cuda.attention.short`` beside torch's attention: images' patches, alone and between the products of a layer.

    python benchmarks/gpu_vision_attention.py --out benchmarks/results/vision_attention.json

Queries, keys and values are views of one projection ``[N, S, 3, heads, head_dim]``, as SigLIP's tower has them. Calls
alone are timed as in ``gpu_table.py``, each with its own. Layers are 27 times the projection, attention and the
output's product, each with its own weights: ``us`` is of one layer, and ``"attention": "none"`` leaves attention out.
"""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from gpu_parts import BANDWIDTH, compiled, microseconds
from gpu_table import BF16_RATE, Rows, prepared

SHORT, PEERS = "cuda.attention.short", ("torch.attention.cudnn", "torch.attention.flash")
SHAPES = (
    *((n, 256, 16, 72) for n in (1, 2, 3, 4, 8, 24)), (3, 256, 16, 64), (3, 196, 16, 72), (2, 256, 16, 128),
    (2, 512, 16, 72), (2, 384, 16, 64), (12, 196, 16, 64), (3, 128, 16, 72), (3, 64, 16, 72),
)  # fmt: skip
CUTS: tuple[dict[str, Any], ...] = ({}, {"groups": 1}, {"groups": 2})
LAYERS = 27


def facts_of(heads: int, dim: int) -> dict[str, Any]:
    return {
        "shape.heads": heads, "shape.kv_heads": heads, "shape.head_dim": dim, "shape.group": 1, "attrs.causal": False,
        "dtype.q": "bf16", "device.sm_count": 132, "mode.capture": True,
    }  # fmt: skip


def fused(n: int, s: int, heads: int, dim: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(n, s, 3, heads, dim, device="cuda").bfloat16().unbind(-3)


def error(attend: Callable[..., torch.Tensor], n: int, s: int, heads: int, dim: int) -> float:
    q, k, v = fused(n, s, heads, dim)
    qd, kd, vd = (t.double().transpose(1, 2) for t in (q, k, v))
    want = (torch.softmax(qd @ kd.mT * dim**-0.5, -1) @ vd).transpose(1, 2)
    return float((attend(q, k, v).double() - want).norm() / want.norm())


def alone(table: Rows) -> None:
    for n, s, heads, dim in SHAPES:
        facts = {**facts_of(heads, dim), "shape.B": n, "shape.Sq": s, "shape.Sk": s}
        size = n * s * heads * dim
        floor = max(8 * size / BANDWIDTH, 4 * size * s / BF16_RATE)
        for id, params in (*((SHORT, params) for params in CUTS), *((peer, {}) for peer in PEERS)):
            run = prepared(id, facts, {}, params).run

            def call() -> Callable[[], Any]:
                inputs = fused(n, s, heads, dim)
                return lambda: run(*inputs)

            name = id + (f" {params}" if params else "")
            what = f"attention B={n} Sq={s} Sk={s} heads={heads} head_dim={dim}"
            table.time(what, name, floor, call, lambda: error(run, n, s, heads, dim))


def layers(table: Rows) -> None:
    """SigLIP so400m's: 16 heads of 72."""
    for n in (1, 2, 3, 24):
        x = torch.randn(n, 256, 1152, device="cuda").bfloat16()
        weights = [
            [torch.randn(width, 1152, device="cuda").bfloat16() / 34 for width in (3456, 1152)] for _ in range(LAYERS)
        ]
        biases = [torch.zeros(width, device="cuda", dtype=torch.bfloat16) for width in (3456, 1152)]

        def layer(attend: Callable[..., torch.Tensor] | None, qkv: torch.Tensor, out: torch.Tensor) -> Any:
            def call() -> torch.Tensor:
                parts = torch.nn.functional.linear(x, qkv, biases[0]).view(n, 256, 3, 16, 72).unbind(-3)
                held = x if attend is None else attend(*parts).flatten(-2)
                return torch.nn.functional.linear(held, out, biases[1])

            return call

        for id in ("none", SHORT, *PEERS):
            attend = None if id == "none" else prepared(id, facts_of(16, 72), {}).run
            us = microseconds([layer(attend, *pair) for pair in weights])
            table.add({"call": f"layer N={n}", "attention": id, "us": us})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    chunks = sorted({(dim, -(-s // 64)) for _, s, _, dim in SHAPES} | {(dim, 4) for *_, dim in SHAPES})
    with ProcessPoolExecutor(14) as pool:
        defines = [{"HD": dim, "CHUNKS": c, "GROUPS": groups} for dim, c in chunks for groups in (1, 2)]
        compiled(pool, "attention_short.cu", defines)
    torch.manual_seed(0)
    table = Rows(arguments.out)
    layers(table)
    alone(table)


if __name__ == "__main__":
    main()
