"""Products of few rows with 16-, 8- and 4-bit weights: checked against float64, then µs in a CUDA graph beside cuBLAS;
then chains of dependent launches, with and without overlap.

    python benchmarks/gpu_skinny.py --out benchmarks/results/skinny.json

Every figure of ``times`` is the time of one call among 40 in one graph, each with its own inputs and weights (weights
come from memory, not from L2), the median of 20 replays; the floor is bytes at 4.25 TB/s. ``chain``: 33 feed-forward
blocks of π0's expert, one after another, µs of a block. ``layer``: the four products of 40 of its layers, each needing
what the one in front wrote, µs of a layer.
"""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from gpu_parts import BANDWIDTH, CALLS, Report, compiled, main_of, microseconds, resources
from phyai_backend_cuda.skinny import order
from phyai_backend_cuda.skinny.launch import ACTIVATIONS, GATED, PLAIN, RESIDUAL, Shape, launch, shape_for

F = torch.nn.functional
EXPERT = {"qkv": (2560, 1024), "o": (1024, 2048), "gate_up": (8192, 1024), "down": (1024, 4096)}
FORMATS: dict[str, dict[str, Any]] = {
    "bf16": {"bits": 16}, "fp8 channel": {"bits": 8}, "int4 g128": {"bits": 4, "group": 128},
    "int4 channel": {"bits": 4}, "int4 g32": {"bits": 4, "group": 32},
}  # fmt: skip


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


def check(report: Report) -> None:
    cases: list[dict[str, Any]] = [
        {"m": m, "n": n, "k": k, **form} for form in FORMATS.values() for n, k in EXPERT.values() for m in (50, 1)
    ]
    cases += [{"m": m, "n": 136, "k": 512, "bits": 16, "bias": True} for m in (1, 7, 8, 9, 17, 25, 33, 48, 57, 64)]
    cases += [{"m": m, "n": 1024, "k": 1024, "bits": 4, "group": 64, "zero_point": True} for m in (3, 51, 64)]
    for form in ({"bits": 16}, {"bits": 8}, {"bits": 4, "group": 128}):
        cases += [
            {"m": 50, "n": 1024, "k": 4096, "epilogue": RESIDUAL, "gates": 1, **form},
            {"m": 64, "n": 1024, "k": 2048, "epilogue": RESIDUAL, "dtype": torch.float16, **form},
            *({"m": 50, "n": 8192, "k": 1024, "epilogue": GATED, "activation": a, **form} for a in ACTIVATIONS),
        ]
    for case in cases:
        report.attempt("check", case, lambda case=case: checked(**case))


def checked(
    m: int, n: int, k: int, bits: int, group: int = 0, zero_point: bool = False, dtype: torch.dtype = torch.bfloat16,
    epilogue: int = PLAIN, activation: str = "silu", bias: bool = False, gates: int = 0,
) -> dict[str, Any]:  # fmt: skip
    shape = shape_for(n, k, bits=bits, group=group, centred=zero_point, half=dtype == torch.float16, epilogue=epilogue)
    assert shape is not None, "no shape"
    held, dense = weight(n, k, bits, group, zero_point, dtype)
    assert dense is not None
    x = normal(m, k, dtype=dtype)
    more: dict[str, Any] = {"activation": activation}
    want = x.double() @ dense.T
    if bias:
        more["bias"] = normal(n, dtype=dtype)
        want = want + more["bias"].double()
    if epilogue == GATED:
        gate, up = want.chunk(2, -1)
        act = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda v: F.gelu(v, approximate="tanh")}[activation]
        want = act(gate) * up
    if epilogue == RESIDUAL:
        more["residual"] = normal(m, n, dtype=dtype)
        if gates:
            more["gate"] = normal(gates, n, dtype=dtype)
            want = want * more["gate"].double().repeat_interleave(m // gates, 0)
        want = want + more["residual"].double()
    ys = [torch.full((m, want.shape[1]), torch.nan, dtype=dtype, device="cuda") for _ in range(3)]
    for y in ys[:2]:
        launch(shape, x, y, operands=held, **more)
    half = max(1, m // 2) if not gates else m  # a row's result does not depend on the others
    part = {name: t[:half] if name == "residual" else t for name, t in more.items()}
    launch(shape, x[:half].clone(), ys[2][:half], operands=held, **part)
    found = {
        "cut": [shape.warpgroups, shape.splits, shape.ahead],
        "error": float((ys[0].double() - want).norm() / want.norm()),
        "same": torch.equal(ys[0], ys[1]),
        "batch_invariant": torch.equal(ys[0][:half], ys[2][:half]),
    }
    if found["error"] > 5e-3 or not found["same"] or not found["batch_invariant"]:
        raise AssertionError(found)
    return found


def cuts(n: int, k: int, form: dict[str, Any], epilogue: int = PLAIN) -> list[Shape]:
    """What is timed: every sensible cut."""
    found = []
    for warpgroups in (1, 2):
        for splits in (1, 2, 4, 8):
            for ahead in (4, 8, 16):
                shape = Shape(n=n, k=k, warpgroups=warpgroups, splits=splits, ahead=ahead, epilogue=epilogue, **form)
                blocks = shape.tiles * splits
                if 60 <= blocks <= 330 and shape.objection() is None and (ahead == 4 or ahead // 2 < shape.chunks):
                    found.append(shape)
    return found


def times(report: Report) -> None:
    for name, (n, k) in EXPERT.items():
        what = f"expert {name} M=50 N={n} K={k}"
        floor = round(2 * (n * k + 50 * (n + k)) / BANDWIDTH * 1e6, 2)
        report.attempt(
            "time", {"call": what, "kernel": "torch (cuBLAS) bf16", "floor_us": floor},
            lambda: {"us": microseconds([mm(normal(50, k), normal(n, k)) for _ in range(CALLS)])},
        )  # fmt: skip
        for form_name in ("bf16", "fp8 channel", "int4 g128"):
            form = FORMATS[form_name]
            floor = round((n * k * form["bits"] / 8 + 100 * (n + k)) / BANDWIDTH * 1e6, 2)
            default = shape_for(n, k, **form)
            for shape in cuts(n, k, form):
                row = {"call": what, "kernel": form_name, "cut": [shape.warpgroups, shape.splits, shape.ahead],
                       "floor_us": floor, "default": shape == default}  # fmt: skip
                report.attempt("time", row, lambda: timed(shape, form))
    n, k = EXPERT["gate_up"]
    for form_name in ("bf16", "fp8 channel", "int4 g128"):
        for shape in cuts(n, k, FORMATS[form_name], GATED):
            row = {"call": "expert gate_up with activation", "kernel": form_name,
                   "cut": [shape.warpgroups, shape.splits, shape.ahead]}  # fmt: skip
            report.attempt("time", row, lambda: timed(shape, FORMATS[form_name]))


def timed(shape: Shape, form: dict[str, Any]) -> dict[str, float]:
    held = [weight(shape.n, shape.k, **form, dense=False)[0] for _ in range(CALLS)]
    outputs = shape.n // 2 if shape.epilogue == GATED else shape.n
    xs, ys = ([normal(50, width) for _ in range(CALLS)] for width in (shape.k, outputs))

    def calls(overlap: bool) -> list[Callable[[], Any]]:
        return [
            lambda w=w, x=x, y=y: launch(shape, x, y, operands=w, overlap=overlap)
            for w, x, y in zip(held, xs, ys, strict=True)
        ]

    return {"us": microseconds(calls(False)), "overlapped_us": microseconds(calls(True))}


def mm(x: torch.Tensor, w: torch.Tensor) -> Callable[[], Any]:
    return lambda: F.linear(x, w)


def rms_norm(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, overlap: bool) -> None:
    from phyai.facts import Facts
    from phyai_backend_cuda.norms.overlap import kernel_of, launch

    kernel = kernel_of(Facts({"shape.D": x.shape[1], "dtype.x": "bf16"}))
    launch(kernel, x, y, eps=1e-6, weight=w, overlap=overlap)


def chain(report: Report) -> None:
    """y = x + down(act(gate_up(norm(x)))), 33 times: three or four dependent launches each."""
    for form_name in ("bf16", "fp8 channel", "int4 g128"):
        chain_of(report, form_name)


def chain_of(report: Report, form_name: str, layers: int = 33) -> None:
    form, (n, k) = FORMATS[form_name], EXPERT["gate_up"]
    up, down = shape_for(n, k, **form, epilogue=GATED), shape_for(k, n // 2, **form, epilogue=RESIDUAL)
    if up is None or down is None:
        raise AssertionError("no shape")
    made = [(weight(n, k, **form), weight(k, n // 2, **form)) for _ in range(layers)]
    norms = [torch.rand(k, device="cuda").bfloat16() + 0.5 for _ in range(layers)]
    first = normal(50, k)

    def run(norm_of: str, overlap: bool) -> torch.Tensor:
        x, h, a = first.clone(), torch.empty_like(first), torch.empty(50, n // 2, dtype=first.dtype, device="cuda")
        for w, ((wu, _), (wd, _)) in zip(norms, made, strict=True):
            if norm_of == "torch":
                h = F.rms_norm(x, (k,), w, 1e-6)
            else:
                rms_norm(x, w, h, overlap)
            launch(up, h, a, operands=wu, activation="gelu_tanh", overlap=overlap)
            launch(down, a, x, operands=wd, residual=x, overlap=overlap)
        return x

    want = first.double()
    for w, ((_, wu), (_, wd)) in zip(norms, made, strict=True):
        h = F.rms_norm(want, (k,), w.double(), 1e-6) @ wu.T
        want = want + (F.gelu(h[:, : n // 2], approximate="tanh") * h[:, n // 2 :]) @ wd.T
    for norm_of, overlap in (("torch", False), ("cuda", False), ("torch", True), ("cuda", True)):

        def measured(norm_of: str = norm_of, overlap: bool = overlap) -> dict[str, float]:
            y = run(norm_of, overlap)
            us = microseconds([lambda: run(norm_of, overlap)])
            return {"us": round(us / layers, 2), "error": float((y.double() - want).norm() / want.norm())}

        row = {"call": "feed-forward block", "kernel": form_name, "norm": norm_of, "overlap": overlap}
        report.attempt("chain", row, measured)
    if form_name == "bf16":
        report.attempt(
            "chain", {"call": "feed-forward block", "kernel": "torch and Triton rows"},
            lambda: {"us": round(microseconds([lambda: plain(first, norms, made)]) / layers, 2)},
        )  # fmt: skip


def layer(report: Report) -> None:
    """x += o(qkv(x)), x += down(act(gate_up(x))): the products of a layer without what lies between them."""
    for form_name in ("bf16", "fp8 channel", "int4 g128"):
        form = FORMATS[form_name]
        floor = sum((n * k * form["bits"] / 8 + 100 * (n + k)) / BANDWIDTH * 1e6 for n, k in EXPERT.values())
        row = {"call": "products of a layer", "kernel": form_name, "floor_us": round(floor, 2)}
        report.attempt("layer", row, lambda: layer_of(form))


def layer_of(form: dict[str, Any], layers: int = 40) -> dict[str, float]:
    epilogues = {"qkv": PLAIN, "o": RESIDUAL, "gate_up": GATED, "down": RESIDUAL}
    shapes = {name: shape_for(*EXPERT[name], **form, epilogue=epilogues[name]) for name in EXPERT}
    first, x, qkv, act = (normal(50, width) for width in (1024, 1024, 2560, 4096))
    want, made = first.double(), []
    for _ in range(layers):
        held: dict[str, dict[str, torch.Tensor]] = {}
        dense: dict[str, torch.Tensor] = {}
        for name in EXPERT:
            held[name], dense[name] = weight(*EXPERT[name], **form)  # type: ignore[assignment]
            if name in ("o", "down"):  # what is added is small, or x grows without end; an eighth is exact
                dense[name] *= 0.125
                part = next(part for part in ("group_scale", "row_scale", "w") if part in held[name])
                held[name][part] *= 0.125
        made.append(held)
        want = want + (want @ dense["qkv"].T)[:, :2048] @ dense["o"].T
        gate, up = (want @ dense["gate_up"].T).chunk(2, -1)
        want = want + (F.silu(gate) * up) @ dense["down"].T

    def run(overlap: bool) -> None:
        x.copy_(first)
        for held in made:
            launch(shapes["qkv"], x, qkv, operands=held["qkv"], overlap=overlap)
            launch(shapes["o"], qkv[:, :2048], x, operands=held["o"], residual=x, overlap=overlap)
            launch(shapes["gate_up"], x, act, operands=held["gate_up"], overlap=overlap)
            launch(shapes["down"], act, x, operands=held["down"], residual=x, overlap=overlap)

    found: dict[str, float] = {}
    results = []
    for name, overlap in (("us", False), ("overlapped_us", True)):
        found[name] = round(microseconds([lambda: run(overlap)]) / layers, 2)
        results.append(x.clone())
    found["error"] = float((x.double() - want).norm() / want.norm())
    if not torch.equal(*results) or found["error"] > 0.05:
        raise AssertionError(found)
    return found


def plain(x: torch.Tensor, norms: list[torch.Tensor], made: list[Any]) -> torch.Tensor:
    from phyai.facts import Facts
    from phyai_backend_cuda.triton_rows import elementwise

    facts = Facts({"shape.I": EXPERT["gate_up"][0] // 2, "attrs.activation": "gelu_tanh"})
    act = elementwise.prepare_gated_activation(facts, {}, {}, resources()).run
    for w, ((wu, _), (wd, _)) in zip(norms, made, strict=True):
        h = act(F.linear(F.rms_norm(x, (len(w),), w, 1e-6), wu["w"]))
        x = torch.addmm(x, h, wd["w"].T)
    return x


def ahead(pool: Any) -> None:
    """Compile what will be needed side by side."""
    wanted: list[dict[str, int]] = []
    for n, k in EXPERT.values():
        for name in ("bf16", "fp8 channel", "int4 g128"):
            form = FORMATS[name]
            wanted += [shape.defines(50) for shape in cuts(n, k, form)]
        for form in FORMATS.values():
            shape = shape_for(n, k, **form)
            wanted += [shape.defines(m) for m in (50, 25, 1)] if shape else []
    for name in ("bf16", "fp8 channel", "int4 g128"):
        for epilogue, (n, k) in ((GATED, EXPERT["gate_up"]), (RESIDUAL, EXPERT["down"])):
            shape = shape_for(n, k, **FORMATS[name], epilogue=epilogue)
            wanted += [shape.defines(m) for m in (50, 25)] if shape else []
            wanted += [shape.defines(50) for shape in cuts(n, k, FORMATS[name], epilogue)]
    unique = {tuple(sorted(d.items())): d for d in wanted}
    compiled(pool, "skinny.cu", list(unique.values()))


if __name__ == "__main__":
    parts = {"check": check, "times": times, "chain": chain, "layer": layer}
    main_of(argparse.ArgumentParser(description=__doc__), parts, ahead)
