"""Dense products of many rows: checked against float64, then µs in a CUDA graph beside cuBLAS; then SigLIP's layers.

    python benchmarks/gpu_dense.py --out benchmarks/results/dense.json

Every figure of ``time`` is the time of one call among 40 in one graph, each with its own inputs and weights (weights
come from memory, not from L2), the median of 20 replays; the floor is the larger of bytes at 4.25 TB/s and FLOPs at
793 TFLOP/s. ``us``: each launch waits for the end of the one in front; ``overlapped_us``: it may begin before, as the
rows launch it. ``chain``: 27 layers of SigLIP, each call needing what the one in front wrote, ms of all.
"""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from gpu_parts import CALLS, Report, compiled, main_of, microseconds, resources
from gpu_table import BF16_RATE, floor_of, normal, weight
from phyai.facts import Facts
from phyai_backend_cuda.dense.product import Product
from phyai_backend_cuda.dense.tiles import tile_for

F = torch.nn.functional
#: name: rows, N, K, has a bias, activation
PRODUCTS: dict[str, tuple[tuple[int, ...], int, int, bool, str | None]] = {
    "vision qkv": ((768, 512, 256, 1536), 3456, 1152, True, None),
    "vision o": ((768, 512, 256, 1536), 1152, 1152, True, None),
    "vision up": ((768, 512, 256, 1536), 4304, 1152, True, "gelu_tanh"),
    "vision down": ((768, 512, 256, 1536), 1152, 4304, True, None),
    "vision projector": ((768,), 2048, 1152, True, None),
    "prefix qkv": ((968, 816, 712, 1218, 512), 2560, 2048, False, None),
    "prefix o": ((968, 816, 712, 1218, 512), 2048, 2048, False, None),
}  # fmt: skip
SIGLIP = {"rows": 768, "width": 1152, "inner": 4304, "layers": 27}


#: One product of a layer: with its name, of x.
Step = Callable[[Product, str, torch.Tensor], torch.Tensor]


def cublas(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, activation: str | None) -> torch.Tensor:
    if activation and bias is not None:
        return torch._addmm_activation(bias, x, w.T, use_gelu=True)
    return F.linear(x, w, bias)


def check(report: Report) -> None:
    for name, (rows, n, k, biased, activation) in PRODUCTS.items():
        for m in rows:
            report.attempt("check", {"call": name, "M": m}, lambda: checked(m, n, k, biased, activation))


def checked(m: int, n: int, k: int, biased: bool, activation: str | None) -> dict[str, Any]:
    x, w, bias = normal(m, k), weight(n, k), normal(n) if biased else None
    product = Product(w, bias, Facts({}), activation=activation)
    ys = [torch.full((m, n), torch.nan, dtype=x.dtype, device="cuda") for _ in range(2)]
    for y, overlap in zip(ys, (False, True), strict=True):
        product.launch(x, y, overlap=overlap)
    want = x.double() @ w.double().T + (0 if bias is None else bias.double())
    want = F.gelu(want, approximate="tanh") if activation else want
    found = {"error": float((ys[0].double() - want).norm() / want.norm()), "same": torch.equal(*ys)}
    if not found["error"] < 5e-3 or not found["same"]:
        raise AssertionError(found)
    return found


def times(report: Report) -> None:
    for name, (rows, n, k, biased, activation) in PRODUCTS.items():
        for m in rows:
            op = "gemm" if activation is None else "gemm with activation"
            floor = floor_of(2 * (n * k + m * (n + k)), 2 * m * n * k, BF16_RATE)
            row = {"call": f"{op} M={m} N={n} K={k}", "site": name, "floor_us": round(floor * 1e6, 2)}
            made = [(normal(m, k), weight(n, k), normal(n) if biased else None) for _ in range(CALLS)]
            report.attempt(
                "time", {**row, "kernel": "torch.gemm.bf16"},
                lambda: {"us": microseconds([lambda v=v: cublas(*v, activation) for v in made])},
            )  # fmt: skip
            report.attempt("time", {**row, "kernel": "cuda.gemm.dense_16bit"}, lambda: timed(made, activation))


def timed(made: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]], activation: str | None) -> dict[str, Any]:
    products = [Product(w, bias, Facts({}), activation=activation) for _, w, bias in made]
    xs, ys = [x for x, _, _ in made], [x.new_empty(len(x), len(w)) for x, w, _ in made]
    tile = tile_for(len(xs[0]), *made[0][1].shape)

    def all_of(overlap: bool) -> list[Callable[[], Any]]:
        return [lambda p=p, x=x, y=y: p.launch(x, y, overlap=overlap) for p, x, y in zip(products, xs, ys, strict=True)]

    return {
        "us": microseconds(all_of(False)), "overlapped_us": microseconds(all_of(True)),
        "width": tile.columns, "across": tile.across, "along": tile.along, "split": tile.split,
    }  # fmt: skip


def blocks(report: Report) -> None:
    """SigLIP's feed-forward block, as rows."""
    from gpu_table import prepared

    width, inner = SIGLIP["width"], SIGLIP["inner"]
    for m in (768, 512, 256):
        floor = floor_of(4 * width * (inner + m), 4 * m * width * inner, BF16_RATE)
        row = {"call": f"mlp M={m} K={width} I={inner} N={width}", "floor_us": round(floor * 1e6, 2)}
        made = [(normal(m, width), {"fc1": weight(inner, width), "fc1_bias": normal(inner), "fc2": weight(width, inner),
                                    "fc2_bias": normal(width)}) for _ in range(CALLS)]  # fmt: skip
        for id in ("torch.mlp.addmm_activation", "cuda.mlp.dense_16bit"):
            facts = {"attrs.activation": "gelu_tanh"}
            runs = [(prepared(id, facts, weights).run, x) for x, weights in made]
            report.attempt(
                "time", {**row, "kernel": id}, lambda: {"us": microseconds([lambda r=r: r[0](r[1]) for r in runs])}
            )


def chain(report: Report) -> None:
    """layer_norm_add, qkv, cuDNN's attention, o, layer_norm_add, up with activation, down; 27 times."""
    m, d, i, count = SIGLIP.values()
    sizes = {"qkv": (3 * d, d), "o": (d, d), "up": (i, d), "down": (d, i)}
    activations = dict.fromkeys(sizes) | {"up": "gelu_tanh"}
    layers = [{name: Product(weight(*size), normal(size[0]) / 8, Facts({}), activation=activations[name])
               for name, size in sizes.items()} for _ in range(count)]  # fmt: skip
    affine = [{"weight": 1 + normal(d) / 8, "bias": normal(d) / 8} for _ in range(2 * count)]
    ys = {name: torch.empty(m, n, dtype=torch.bfloat16, device="cuda") for name, (n, _) in sizes.items()}
    first = normal(m, d)

    def attend(qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.transpose(1, 2) for t in qkv.view(m // 256, 256, 3, 16, 72).unbind(2))
        y = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, False, 0.0, False, False)[0]
        return y.transpose(1, 2).reshape(m, d)

    def run(step: Step, norms: list[Any]) -> torch.Tensor:
        x, added = first.clone(), torch.zeros_like(first)
        for layer, before, between in zip(layers, norms[::2], norms[1::2], strict=True):
            h = before(added, x)
            h = between(step(layer["o"], "o", attend(step(layer["qkv"], "qkv", h))), x)
            added = step(layer["down"], "down", step(layer["up"], "up", h))
        return x + added

    def library(product: Product, name: str, x: torch.Tensor) -> torch.Tensor:
        return cublas(x, product.weight, product.bias, activations[name])

    def ours(overlap: bool) -> Step:
        def step(product: Product, name: str, x: torch.Tensor) -> torch.Tensor:
            product.launch(x, ys[name], overlap=overlap)
            return ys[name]

        return step

    want = run(library, norms_of(affine, False)).float()
    for name, step, overlap in (
        ("cuBLAS", library, False), ("cuBLAS, norms overlap", library, True), ("dense", ours(False), False),
        ("dense, overlaps", ours(True), False), ("dense, norms too", ours(True), True),
    ):  # fmt: skip
        norms = norms_of(affine, overlap)
        report.attempt("chain", {"kernel": name}, lambda: {
            "difference": float((run(step, norms).float() - want).norm() / want.norm()),
            "ms": microseconds([lambda: run(step, norms)]) / 1e3,
        })  # fmt: skip


def norms_of(affine: list[dict[str, torch.Tensor]], overlap: bool) -> list[Any]:
    from gpu_table import kernels

    prepare, facts = kernels()["cuda.layer_norm_add"].load(), Facts({"attrs.eps": 1e-6, "device.arch": "sm90"})
    return [prepare(facts, weights, {"overlap": overlap}, resources()).run for weights in affine]


def ahead(pool: ProcessPoolExecutor) -> None:
    made = []
    for rows, n, k, _, activation in PRODUCTS.values():
        made += [{**tile_for(m, n, k).defines(), "ACTIVATION": 3 if activation else 0} for m in rows]
    compiled(pool, "dense.cu", made)


if __name__ == "__main__":
    parts = {"check": check, "times": times, "blocks": blocks, "chain": chain}
    main_of(argparse.ArgumentParser(description=__doc__), parts, ahead)
