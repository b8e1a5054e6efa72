"""``cuda.transformer_encoder.folded``: its products beside those without norm or addition, and all of SigLIP's layers.

    python benchmarks/gpu_encoder.py --out benchmarks/results/encoder.json

``time``: one call among 40 in one graph, each with its own inputs and weights, the median of 20 replays of launches
that overlap; ``plain_us`` is the same product without a norm or an addition. ``chain``: 27 layers, each call needing
what the one in front wrote, µs of all: the row, the calls that it replaces with products of ``csrc/dense.cu``, and the
same with cuBLAS's; replayed in turns, the median of 30; the floor is the larger of the weights' bytes at 4.25 TB/s and
the operations of products and attention at 793 TFLOP/s. ``error`` is that of the result against the formulas in
float64, of a residual stream with six channels 50 to 100 times larger than the rest.
"""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor

import torch
from gpu_parts import CALLS, Report, compiled, main_of, microseconds, resources
from gpu_table import BF16_RATE, floor_of, normal, prepared, weight
from phyai.facts import Facts
from phyai.ops.transformer_encoder import OP
from phyai_backend_cuda.dense.product import Product
from phyai_backend_cuda.dense.tiles import Chip, tile_for
from phyai_backend_cuda.encoder.products import PART, Adding, Normed, folded, statistics_for, statistics_of

F = torch.nn.functional
SPEC = next(spec for spec in OP.arg_specs if spec.name == "pi05.vision")
WIDTH, INNER, LAYERS, ROWS = (SPEC.dims[name] for name in ("D", "I", "layers", "S"))
HEADS, EPS = int(SPEC.attrs["heads"]), float(SPEC.attrs["eps"])
IMAGES, FACTS = (3, 2, 1), Facts({})
#: name: N, K, activation; those behind a norm, and those that add
NORMED: dict[str, tuple[int, int, str | None]] = {
    "qkv": (3 * WIDTH, WIDTH, None), "fc1": (INNER, WIDTH, "gelu_tanh"),
}  # fmt: skip
ADDING = {"o": (WIDTH, WIDTH, None), "fc2": (WIDTH, INNER, None)}


def stream(*shape: int) -> torch.Tensor:
    """A residual stream as SigLIP's: six channels 50 to 100 times larger than the rest, with means of their own."""
    x = torch.randn(*shape, device="cuda")
    size = torch.tensor([50.0, 60, 70, 80, 90, 100], device="cuda")
    x[..., 5:300:50] = x[..., 5:300:50] * size + size * torch.randn(6, device="cuda")
    return (x + 1).bfloat16()


def norm_weights() -> tuple[torch.Tensor, torch.Tensor]:
    return (0.7 * torch.randn(WIDTH, device="cuda")).exp().bfloat16(), normal(WIDTH) / 4


def times(report: Report) -> None:
    for images in IMAGES:
        m = images * ROWS
        for name, (n, k, activation) in (NORMED | ADDING).items():
            made = [(stream(m, k), weight(n, k), normal(n) / 8) for _ in range(CALLS)]
            ys = [x.new_empty(m, n) for x, _, _ in made]
            plain = [Product(w, b, FACTS, activation=activation) for _, w, b in made]
            runs = [fused(name, *one, y) for one, y in zip(made, ys, strict=True)]
            alone = [
                lambda p=p, x=x, y=y: p.launch(x, y) for p, (x, _, _), y in zip(plain, made, ys, strict=True)
            ]  # fmt: skip
            report.attempt(
                "time", {"call": name, "M": m}, lambda: {"plain_us": microseconds(alone), "us": microseconds(runs)}
            )


def fused(name: str, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """A product of the row."""
    known = statistics_for(len(x), WIDTH, x.device)
    if name in ADDING:
        adding, residual = Adding(w, b, FACTS), stream(*y.shape)
        return lambda: adding.added(x, residual, y, known)
    normed = Normed(folded(w, b, *norm_weights()), EPS, FACTS, activation=NORMED[name][2])
    statistics_of(x, known)
    return lambda: normed.normed(x, known, y)


def made_up() -> dict[str, torch.Tensor]:
    """Weights as the op names them."""
    found: dict[str, torch.Tensor] = {}
    for name, (n, k, _) in (NORMED | ADDING).items():
        found[name] = torch.stack([weight(n, k) for _ in range(LAYERS)])
        found[f"{name}_bias"] = normal(LAYERS, n) / 8
    for norm in ("norm1", "norm2"):
        found[f"{norm}_weight"], found[f"{norm}_bias"] = map(
            torch.stack, zip(*(norm_weights() for _ in range(LAYERS)), strict=True)
        )
    return found | {"norm_weight": torch.ones_like(normal(WIDTH)), "norm_bias": torch.zeros_like(normal(WIDTH))}


def exact(w: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The op's formulas in float64."""
    h = x.double()

    def norm(h: torch.Tensor, of: str, *at: int) -> torch.Tensor:
        weight, bias = (w[f"{of}_{name}"][at].double() for name in ("weight", "bias"))
        return F.layer_norm(h, (WIDTH,), weight, bias, EPS)

    def product(x: torch.Tensor, name: str, i: int) -> torch.Tensor:
        return F.linear(x, w[name][i].double(), w[f"{name}_bias"][i].double())

    for i in range(LAYERS):
        q, k, v = product(norm(h, "norm1", i), "qkv", i).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v
        h = h + product(mixed.transpose(1, 2).flatten(-2), "o", i)
        h = h + product(F.gelu(product(norm(h, "norm2", i), "fc1", i), approximate="tanh"), "fc2", i)
    return norm(h, "norm")


def one_by_one(w: Mapping[str, torch.Tensor], *, dense: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """The calls that the row replaces: with products of ``csrc/dense.cu``, or cuBLAS's."""
    sites = {"shape.heads": HEADS, "shape.kv_heads": HEADS, "shape.head_dim": WIDTH // HEADS, "dtype.q": "bf16"}
    attend = prepared("cuda.attention.short", sites, {}).run
    facts = {"attrs.eps": EPS, "device.arch": "sm90"}
    norms = [
        prepared("cuda.layer_norm_add", facts, {name: w[f"{norm}_{name}"][i] for name in ("weight", "bias")}).run
        for i in range(LAYERS) for norm in ("norm1", "norm2")
    ]  # fmt: skip
    last = prepared("cuda.layer_norm_add", facts, {name: w[f"norm_{name}"] for name in ("weight", "bias")}).run
    acts = {name: activation for name, (_, _, activation) in (NORMED | ADDING).items()}
    products = [
        {name: Product(w[name][i], w[f"{name}_bias"][i], FACTS, activation=act) for name, act in acts.items()}
        for i in range(LAYERS)
    ]

    def product(i: int, name: str, x: torch.Tensor) -> torch.Tensor:
        own = products[i][name]
        if dense:
            return own(x)
        if acts[name] and own.bias is not None:
            return torch._addmm_activation(own.bias, x.flatten(0, 1), own.weight.T, use_gelu=True).unflatten(
                0, x.shape[:2]
            )
        return F.linear(x, own.weight, own.bias)

    def run(x: torch.Tensor) -> torch.Tensor:
        x, added = x.clone(), torch.zeros_like(x)
        for i in range(LAYERS):
            parts = product(i, "qkv", norms[2 * i](added, x)).unflatten(-1, (3, HEADS, -1)).unbind(-3)
            mixed = product(i, "o", attend(*parts).flatten(-2))
            added = product(i, "fc2", product(i, "fc1", norms[2 * i + 1](mixed, x)))
        return last(added, x)

    return run


def chain(report: Report) -> None:
    from gpu_table import kernels

    w = made_up()
    facts = Facts({
        "attrs.heads": HEADS, "attrs.eps": EPS, "attrs.activation": "gelu_tanh", "shape.layers": LAYERS,
        "shape.D": WIDTH, "shape.I": INNER, "device.arch": "sm90", "device.sm_count": 132,
    })  # fmt: skip
    row = kernels()["cuda.transformer_encoder.folded"].load()(facts, w, {}, resources()).run
    alone = "decomposed.transformer_encoder"
    runs = {
        "cuda.transformer_encoder.folded": row, f"{alone} (cuda.*.dense_16bit)": one_by_one(w, dense=True),
        f"{alone} (cuBLAS)": one_by_one(w, dense=False),
    }  # fmt: skip
    elements = sum(w[name].numel() for name in NORMED | ADDING)
    for images in IMAGES:
        x, call = stream(images, ROWS, WIDTH), f"transformer_encoder B={images} S={ROWS}"
        want, graphs = exact(w, x), {}
        for name, run in runs.items():
            y = run(x).clone()
            found = {"error": float((y.double() - want).norm() / want.norm()), "same": torch.equal(y, run(x))}
            report.attempt("chain check", {"call": call, "kernel": name}, lambda: found)
            graphs[name] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[name]):
                run(x)
        operations = 2 * images * ROWS * (elements + 2 * ROWS * WIDTH * LAYERS)
        floor = {"floor_us": round(floor_of(2 * elements, operations, BF16_RATE) * 1e6)}
        for name, each in in_turns(graphs).items():
            report.attempt("chain", {"call": call, "kernel": name} | floor, lambda: {"us": each[len(each) // 2]})


def in_turns(graphs: Mapping[str, torch.cuda.CUDAGraph]) -> dict[str, list[float]]:
    """Microseconds of 30 replays of each, sorted."""
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(30):
        for name, graph in graphs.items():
            graph.replay()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found[name].append(round(begin.elapsed_time(end) * 1e3, 1))
    return {name: sorted(each) for name, each in found.items()}


def ahead(pool: ProcessPoolExecutor) -> None:
    made = []
    for images in IMAGES:
        m = images * ROWS
        for n, k, activation in (NORMED | ADDING).values():
            own = {"ACTIVATION": 3 if activation else 0}
            plain = tile_for(m, n, k).defines() | own
            adding = Adding.tile_for(m, n, k, Chip()).defines() | own
            made += [plain, plain | {"NORMED": k // PART} if n != WIDTH else adding | {"RESIDUAL": 1}]
    compiled(pool, "dense.cu", made)
    compiled(pool, "statistics.cu", [{}])
    compiled(pool, "attention_short.cu", [{"HD": WIDTH // HEADS, "CHUNKS": 4, "GROUPS": groups} for groups in (1, 2)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    main_of(parser, {"times": times, "chain": chain}, ahead)
