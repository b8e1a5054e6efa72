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
from gpu_parts import BANDWIDTH, CALLS, Report, compiled, main_of, microseconds, resources
from phyai_backend_cuda.skinny import order
from phyai_backend_cuda.skinny.launch import ACTIVATIONS, MAX_ROWS, PAIR_ROWS, SPLITS, Shape, launch, shape_for

F = torch.nn.functional
EXPERT = {"qkv": (2560, 1024), "o": (1024, 2048), "gate_up": (8192, 1024), "down": (1024, 4096)}
FORMATS: dict[str, dict[str, Any]] = {
    "bf16": {"bits": 16}, "fp8 channel": {"bits": 8}, "int4 g128": {"bits": 4, "group": 128},
    "int4 channel": {"bits": 4}, "int4 g32": {"bits": 4, "group": 32},
}  # fmt: skip
TIMED = ("bf16", "fp8 channel", "int4 g128")


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def weight(
    n: int, k: int, bits: int, group: int = 0, zero_point: bool = False, dtype: torch.dtype = torch.bfloat16,
    dense: bool = True,
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:  # fmt: skip
    """A random weight as the kernel takes it, and in float64."""
    scales = torch.rand(n, k // group if group else 1, device="cuda") + 0.5
    if bits == 16:
        w = normal(n, k, dtype=dtype) / k**0.5
        return {"w": w}, w.double() if dense else None
    if bits == 8:
        codes = normal(n, k).to(torch.float8_e4m3fn)
        held = {"w": order.pack_fp8(codes.view(torch.uint8)), "row_scale": scales[:, 0] / k**0.5}
        return held, codes.double() * held["row_scale"].double()[:, None] if dense else None
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, device="cuda")
    held = {"w": order.pack_int4(codes)}
    if not group:
        held["row_scale"] = scales[:, 0] / (4 * k**0.5)
        return held, (codes.double() - 8) * held["row_scale"].double()[:, None] if dense else None
    scale = (scales / (4 * k**0.5)).to(dtype)
    zero = torch.randint(0, 17, scale.shape, device="cuda") if zero_point else torch.full(scale.shape, 8, device="cuda")
    held["group_scale"] = order.pack_pairs(scale)
    if zero_point:
        held["group_zero"] = order.pack_pairs((zero + (1024 if dtype == torch.float16 else 128)).to(dtype))
    if not dense:
        return held, None
    z, s = (t.double().repeat_interleave(group, 1) for t in (zero, scale))
    return held, (codes.double() - z) * s


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


def shape_of(
    n: int, k: int, bits: int, group: int = 0, zero_point: bool = False, dtype: torch.dtype = torch.bfloat16,
    activation: str | None = None, **_: Any,
) -> Shape:  # fmt: skip
    half = dtype == torch.float16
    shape = shape_for(n, k, bits=bits, group=group, centred=zero_point, half=half, activation=activation)
    assert shape is not None, "no shape"
    return shape


def checked(
    m: int, n: int, k: int, bits: int, group: int = 0, zero_point: bool = False, dtype: torch.dtype = torch.bfloat16,
    activation: str | None = None, bias: bool = False,
) -> dict[str, Any]:  # fmt: skip
    shape = shape_of(n, k, bits, group, zero_point, dtype, activation)
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


class Norm:
    """rms_norm of what is added to x, in a launch that overlaps or as torch has it."""

    def __init__(self, dim: int, *, ours: bool) -> None:
        from phyai.facts import Facts
        from phyai_backend_cuda.norms.overlap import kernel_of

        self.ours, self.dim = ours, dim
        facts = Facts({"shape.D": dim, "dtype.x": "bf16"})
        self.kernels = {add: kernel_of(facts, add=add) for add in (False, True)}

    def __call__(
        self, x: torch.Tensor, added: torch.Tensor | None, w: torch.Tensor, h: torch.Tensor, overlap: bool
    ) -> None:
        """h = norm(x += added)"""
        from phyai_backend_cuda.norms.overlap import launch

        if not self.ours:
            h.copy_(F.rms_norm(x if added is None else x.add_(added), (self.dim,), w, 1e-6))
        elif added is None:
            launch(self.kernels[False], x, h, eps=1e-6, weight=w, overlap=overlap)
        else:
            launch(self.kernels[True], added, h, eps=1e-6, weight=w, residual=x, overlap=overlap)


def normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (len(w),), w.double(), 1e-6)


def chain(report: Report) -> None:
    """x += down(act(gate_up(norm(x)))), 33 times: three dependent launches each."""
    for form_name in TIMED:
        chain_of(report, form_name)


def chain_of(report: Report, form_name: str, layers: int = 33) -> None:
    form, (n, k) = FORMATS[form_name], EXPERT["gate_up"]
    up, down = shape_for(n, k, **form, activation="gelu_tanh"), shape_for(k, n // 2, **form)
    if up is None or down is None:
        raise AssertionError("no shape")
    made = [(weight(n, k, **form), weight(k, n // 2, **form)) for _ in range(layers)]
    norms = [torch.rand(k, device="cuda").bfloat16() + 0.5 for _ in range(layers)]
    first = normal(50, k)
    x, h, d = (torch.empty_like(first) for _ in range(3))
    a = torch.empty(50, n // 2, dtype=first.dtype, device="cuda")

    def run(norm: Norm, overlap: bool) -> None:
        x.copy_(first)
        added = None
        for w, ((wu, _), (wd, _)) in zip(norms, made, strict=True):
            norm(x, added, w, h, overlap)
            launch(up, h, a, operands=wu, overlap=overlap)
            launch(down, a, d, operands=wd, overlap=overlap)
            added = d
        x.add_(d)

    want = first.double()
    for w, ((_, wu), (_, wd)) in zip(norms, made, strict=True):
        gate, rest = (normed(want, w) @ wu.T).chunk(2, -1)
        want = want + (F.gelu(gate, approximate="tanh") * rest) @ wd.T
    for norm_of, overlap in (("torch", False), ("cuda", False), ("torch", True), ("cuda", True)):

        def measured(norm_of: str = norm_of, overlap: bool = overlap) -> dict[str, float]:
            norm = Norm(k, ours=norm_of == "cuda")
            us = microseconds([lambda: run(norm, overlap)])
            return {"us": round(us / layers, 2), "error": float((x.double() - want).norm() / want.norm())}

        row = {"call": "feed-forward block", "kernel": form_name, "norm": norm_of, "overlap": overlap}
        report.attempt("chain", row, measured)
    if form_name == "bf16":
        report.attempt(
            "chain", {"call": "feed-forward block", "kernel": "torch and Triton rows"},
            lambda: {"us": round(microseconds([lambda: plain(first, norms, made)]) / layers, 2)},
        )  # fmt: skip


def layer(report: Report) -> None:
    """x += o(qkv(norm(x))), x += down(act(gate_up(norm(x)))): a layer without its attention."""
    for form_name in TIMED:
        form = FORMATS[form_name]
        floor = sum((n * k * form["bits"] / 8 + 100 * (n + k)) / BANDWIDTH * 1e6 for n, k in EXPERT.values())
        row = {"call": "products and norms of a layer", "kernel": form_name, "floor_us": round(floor, 2)}
        report.attempt("layer", row, lambda: layer_of(form))


def layer_of(form: dict[str, Any], layers: int = 40) -> dict[str, float]:
    activations = {"gate_up": "silu"}
    shapes = {name: shape_for(*EXPERT[name], **form, activation=activations.get(name)) for name in EXPERT}
    first, x, h, d, qkv, act = (normal(50, width) for width in (1024, 1024, 1024, 1024, 2560, 4096))
    norm, w = Norm(1024, ours=True), torch.rand(1024, device="cuda").bfloat16() + 0.5
    want, made = first.double(), []
    for _ in range(layers):
        pairs = {name: weight(*EXPERT[name], **form) for name in EXPERT}
        made.append({name: held for name, (held, _) in pairs.items()})
        dense = {name: values for name, (_, values) in pairs.items()}
        want = want + (normed(want, w) @ dense["qkv"].T)[:, :2048] @ dense["o"].T
        gate, up = (normed(want, w) @ dense["gate_up"].T).chunk(2, -1)
        want = want + (F.silu(gate) * up) @ dense["down"].T

    def run(overlap: bool) -> None:
        x.copy_(first)
        added = None
        for held in made:
            norm(x, added, w, h, overlap)
            launch(shapes["qkv"], h, qkv, operands=held["qkv"], overlap=overlap)
            launch(shapes["o"], qkv[:, :2048], d, operands=held["o"], overlap=overlap)
            norm(x, d, w, h, overlap)
            launch(shapes["gate_up"], h, act, operands=held["gate_up"], overlap=overlap)
            launch(shapes["down"], act, d, operands=held["down"], overlap=overlap)
            added = d
        x.add_(d)

    found: dict[str, float] = {}
    results = []
    for name, overlap in (("us", False), ("overlapped_us", True)):
        found[name] = round(microseconds([lambda: run(overlap)]) / layers, 2)
        results.append(x.clone())
    found["error"] = float((x.double() - want).norm() / want.norm())
    if not torch.equal(*results) or not found["error"] < 0.05:
        raise AssertionError(found)
    return found


def plain(x: torch.Tensor, norms: list[torch.Tensor], made: list[Any]) -> torch.Tensor:
    from phyai.facts import Facts
    from phyai_backend_cuda.triton_rows import elementwise

    facts = Facts({"shape.I": EXPERT["gate_up"][0] // 2, "attrs.activation": "gelu_tanh"})
    act = elementwise.prepare_gated_activation(facts, {}, {}, resources()).run
    for w, ((wu, _), (wd, _)) in zip(norms, made, strict=True):
        h = act(F.linear(F.rms_norm(x, (len(w),), w, 1e-6), wu["w"]))
        x = x + F.linear(h, wd["w"])
    return x


def ahead(pool: Any) -> None:
    """Compile what will be needed side by side."""
    checks = [(shape_of(**case), case["m"]) for case in cases()]
    wanted = [(shape, rows) for shape, m in checks for rows in (m, *fewer(m, shape))]
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
