"""Chains of dependent launches of products of few rows: parts of ``gpu_skinny.py``."""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

from typing import Any

import torch
from gpu_parts import BANDWIDTH, Report, microseconds, resources
from gpu_skinny_weights import EXPERT, FORMATS, TIMED, normal, weight
from phyai_backend_cuda.skinny.launch import launch, shape_for

F = torch.nn.functional


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
