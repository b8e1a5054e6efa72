"""Products of few rows with 16-, 8- and 4-bit weights: checked against float64, then µs in a CUDA graph beside cuBLAS;
then chains of dependent launches, with and without overlap.

    python benchmarks/gpu_skinny.py --out benchmarks/results/skinny.json

Every figure of ``times`` is the time of one call among 40 in one graph, each with its own inputs and weights (weights
come from memory, not from L2), the median of 20 replays; the floor is bytes at 4.25 TB/s. ``chain``: 33 feed-forward
blocks of π0's expert, one after another, µs of a block. ``layer``: the four products and two norms of 40 of its layers,
each needing what the one in front wrote, µs of a layer.
"""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import attrs
import torch
from gpu_parts import BANDWIDTH, CALLS, Report, compiled, main_of, microseconds
from gpu_skinny_chains import chain, layer
from gpu_skinny_weights import EXPERT, FORMATS, TIMED, normal, shape_of, weight
from phyai_backend_cuda.skinny.launch import ACTIVATIONS, MAX_ROWS, PAIR_ROWS, SPLITS, Shape, launch, shape_for

F = torch.nn.functional


def cases() -> list[dict[str, Any]]:
    """What is checked."""
    found: list[dict[str, Any]] = [
        {"m": m, "n": n, "k": k, **form} for form in FORMATS.values() for n, k in EXPERT.values() for m in (50, 1)
    ]
    found += [{"m": m, "n": 136, "k": 512, "bits": 16, "bias": True} for m in (1, 7, 8, 9, 17, 25, 33, 48, 57, 64)]
    found += [{"m": m, "n": 1024, "k": 1024, "bits": 4, "group": 64, "zero_point": True} for m in (3, 51, 64)]
    found += [{"m": 50, "n": 200, "k": k, "bits": 16} for k in (64, 128, 192, 576, 832, 960, 1024, 3072, 8192)]
    for form in ({"bits": 16}, {"bits": 8}, {"bits": 4, "group": 128}, {"bits": 4, "group": 32, "zero_point": True}):
        found += [
            {"m": 64, "n": 1024, "k": 2048, "dtype": torch.float16, **form},
            {"m": 40, "n": 72, "k": 8192, **form},
            *({"m": 50, "n": 8192, "k": 1024, "activation": a, **form} for a in ACTIVATIONS),
            *({"m": m, "n": 384, "k": 4096, "activation": "gelu_tanh", **form} for m in (1, 20, 64)),
        ]
    return found + pairs()


def pairs() -> list[dict[str, Any]]:
    """What is checked of 128 rows of W to a block: every kernel of K = 1024, and of other K those of two sizes."""
    found: list[dict[str, Any]] = []
    for dtype in (torch.bfloat16, torch.float16):
        sixteen = {"bits": 16, "dtype": dtype}
        for m in (1, 9, 20, 32, 39, 47, 50, 64):
            found.append({"m": m, "n": 4616, "k": 1024, "bias": m % 2 == 0, **sixteen})
            found += [{"m": m, "n": 4608, "k": 1024, "activation": a, **sixteen} for a in ACTIVATIONS]
        for k in (640, 768, 896):
            found += [{"m": m, "n": 8440, "k": k, "bias": True, **sixteen} for m in (50, 64)]
            found += [{"m": m, "n": 8448, "k": k, "activation": "silu", **sixteen} for m in (50, 64)]
    return found


def fewer(m: int, shape: Shape) -> list[int]:
    """Numbers of rows whose results are compared with those of ``m``: of pairs, one of every kernel."""
    return list(range(7, m, 8)) if shape.paired and m == MAX_ROWS and shape.k == 1024 else [max(1, m // 2)]


def check(report: Report) -> None:
    for case in cases():
        report.attempt("check", case, lambda case=case: checked(**case))


def checked(
    m: int, n: int, k: int, bits: int, group: int = 0, zero_point: bool = False, dtype: torch.dtype = torch.bfloat16,
    activation: str | None = None, bias: bool = False,
) -> dict[str, Any]:  # fmt: skip
    shape = shape_of(n, k, bits, group, zero_point, dtype, activation=activation)
    held, dense = weight(n, k, bits, group, zero_point, dtype)
    assert dense is not None
    x = normal(m, k, dtype=dtype)
    want = x.double() @ dense.T
    added = normal(n, dtype=dtype) if bias else None
    if added is not None:
        want = want + added.double()
    if activation:
        gate, up = want.chunk(2, -1)
        act = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda v: F.gelu(v, approximate="tanh")}[activation]
        want = act(gate) * up
    parts = fewer(m, shape)  # a row's result does not depend on the others
    ys = [torch.full((rows, want.shape[1]), torch.nan, dtype=dtype, device="cuda") for rows in (m, m, *parts)]
    for y in ys:
        launch(shape, x[: len(y)].clone(), y, operands=held, bias=added)
    found = {
        "block_rows": shape.block_rows, "splits": shape.splits,
        "error": float((ys[0].double() - want).norm() / want.norm()),
        "same": torch.equal(ys[0], ys[1]),
        "batch_invariant": all(torch.equal(ys[0][: len(y)], y) for y in ys[2:]),
    }  # fmt: skip
    if not found["error"] < 5e-3 or not found["same"] or not found["batch_invariant"]:
        raise AssertionError(found)
    return found


def cuts(n: int, k: int, form: dict[str, Any], activation: str | None = None) -> list[Shape]:
    """What is timed: every sensible cut."""
    shapes = [Shape(n=n, k=k, splits=splits, activation=activation, **form) for splits in SPLITS]
    pair = attrs.evolve(shapes[1], block_rows=PAIR_ROWS)
    return [shape for shape in [*shapes, pair] if shape.objection() is None and 60 <= shape.blocks <= 264]


def times(report: Report) -> None:
    for name, (n, k) in EXPERT.items():
        what = f"expert {name} M=50 N={n} K={k}"
        floor = round(2 * (n * k + 50 * (n + k)) / BANDWIDTH * 1e6, 2)
        report.attempt(
            "time", {"call": what, "kernel": "torch (cuBLAS) bf16", "floor_us": floor},
            lambda: {"us": microseconds([mm(normal(50, k), normal(n, k)) for _ in range(CALLS)])},
        )  # fmt: skip
        for form_name in TIMED:
            times_of(report, what, n, k, form_name)
    for form_name in TIMED:
        times_of(report, "expert gate_up with activation", *EXPERT["gate_up"], form_name, "silu")


def times_of(report: Report, what: str, n: int, k: int, form_name: str, activation: str | None = None) -> None:
    form = FORMATS[form_name]
    outputs = n // 2 if activation else n
    floor = round((n * k * form["bits"] / 8 + 100 * (outputs + k)) / BANDWIDTH * 1e6, 2)
    default = shape_for(n, k, activation=activation, **form)
    for shape in cuts(n, k, form, activation):
        row = {"call": what, "kernel": form_name, "block_rows": shape.block_rows, "splits": shape.splits,
               "default": shape == default, "floor_us": floor}  # fmt: skip
        report.attempt("time", row, lambda: timed(shape, form))


def timed(shape: Shape, form: dict[str, Any]) -> dict[str, float]:
    held = [weight(shape.n, shape.k, **form, dense=False)[0] for _ in range(CALLS)]
    xs, ys = ([normal(50, width) for _ in range(CALLS)] for width in (shape.k, shape.outputs))

    def calls(overlap: bool) -> list[Callable[[], Any]]:
        return [
            lambda w=w, x=x, y=y: launch(shape, x, y, operands=w, overlap=overlap)
            for w, x, y in zip(held, xs, ys, strict=True)
        ]

    return {"us": microseconds(calls(False)), "overlapped_us": microseconds(calls(True))}


def mm(x: torch.Tensor, w: torch.Tensor) -> Callable[[], Any]:
    return lambda: F.linear(x, w)


def ahead(pool: Any) -> None:
    """Compile what will be needed side by side."""
    wanted = []
    for case in cases():
        shape = shape_of(**{name: given for name, given in case.items() if name not in ("m", "bias")})
        wanted += [(shape, rows) for rows in (case["m"], *fewer(case["m"], shape))]
    for form in map(FORMATS.__getitem__, TIMED):
        wanted += [(shape, 50) for n, k in EXPERT.values() for shape in cuts(n, k, form)]
        wanted += [(shape, 50) for shape in cuts(*EXPERT["gate_up"], form, "silu")]
    for source in ("skinny.cu", "skinny_pair.cu"):
        defines = [shape.defines(rows) for shape, rows in wanted if shape.source == source]
        unique = {tuple(sorted(d.items())): d for d in defines}
        compiled(pool, source, list(unique.values()))


if __name__ == "__main__":
    parts = {"check": check, "times": times, "chain": chain, "layer": layer}
    main_of(argparse.ArgumentParser(description=__doc__), parts, ahead)
