"""Layers of π0.5's expert, one after another, with epilogues and without: parts of ``gpu_skinny_fused.py``."""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from gpu_attention import metadata, prepare, reference
from gpu_parts import Report, microseconds
from gpu_skinny_fused_calls import KEYS, PAGE, ROWS, floor_us, places, table
from gpu_skinny_fused_checks import rotated
from gpu_skinny_weights import EXPERT, FORMATS, TIMED, normal, shape_of, weight
from gpu_table import prepared
from phyai_backend_cuda.skinny.epilogues import Heads, head_arguments, residual_arguments
from phyai_backend_cuda.skinny.launch import launch

F = torch.nn.functional
HEADS = Heads(heads=8, kv_heads=1, head_dim=256, rotary_dim=256)


class Layers:
    """18 layers of the expert: their weights, caches and modulations, and what they make of ``first`` in float64."""

    def __init__(self, form_name: str, count: int = 18) -> None:
        form = FORMATS[form_name]
        self.form, self.cos_sin, self.at = form, table(), places()
        self.held: list[dict[str, Any]] = []
        self.caches = torch.randn(count, 2, 1, PAGE, 1, 256, device="cuda").bfloat16()
        self.modulations = 0.3 * torch.randn(count, 2, 1, 3072, device="cuda").bfloat16()
        self.first = normal(ROWS, 1024)
        want = self.first.double()
        for i in range(count):
            pairs = {name: weight(*EXPERT[name], **form) for name in EXPERT}
            self.held.append({name: held for name, (held, _) in pairs.items()})
            want = self._layer(want, i, {name: dense for name, (_, dense) in pairs.items() if dense is not None})
        self.want = want

    def _layer(self, x: torch.Tensor, i: int, dense: Mapping[str, torch.Tensor]) -> torch.Tensor:
        scale, shift, gate = self.modulations[i, 0].double().chunk(3, 1)
        h = F.rms_norm(x, (1024,), eps=1e-6) * (1 + scale) + shift
        q, k, v = (h @ dense["qkv"].T).view(ROWS, 10, 256).split([8, 1, 1], 1)
        q, k = (rotated(t, self.cos_sin[self.at], True) for t in (q, k))
        keys, values = (cache[0, : KEYS - ROWS].double() for cache in self.caches[i])
        o = reference(q, torch.cat((keys, k)), torch.cat((values, v)), False, None, None)
        x = x + gate * (o.flatten(1) @ dense["o"].T)
        scale, shift, gate = self.modulations[i, 1].double().chunk(3, 1)
        h = F.rms_norm(x, (1024,), eps=1e-6) * (1 + scale) + shift
        a, b = (h @ dense["gate_up"].T).chunk(2, 1)
        return x + gate * ((F.gelu(a, approximate="tanh") * b) @ dense["down"].T)


def layer(report: Report) -> None:
    for form_name in TIMED:
        layers = Layers(form_name)
        floor = round(sum(floor_us(n, k, layers.form) for n, k in EXPERT.values()), 2)
        overlapped = "fused, overlapped"
        for how in (overlapped, f"{overlapped}, late norms", f"{overlapped}, norms in Triton", "fused", "separate"):
            row = {"call": "layer of the expert M=50", "kernel": how, "format": form_name, "floor_us": floor}
            report.attempt("layer", row, lambda: timed_layers(layers, how))


def timed_layers(layers: Layers, how: str) -> dict[str, Any]:
    run, result = separate_layers(layers) if how == "separate" else fused_layers(layers, how)
    us = microseconds([run])
    error = float((result().double() - layers.want).norm() / (layers.want - layers.first.double()).norm())
    again = result().clone()
    run()
    found = {"us": round(us / len(layers.held), 2), "error": error, "same": torch.equal(again, result())}
    if not error < 0.05 or not found["same"]:
        raise AssertionError(found)
    return found


def attention_of() -> tuple[Any, Any]:
    facts = {
        "shape.heads": 8, "shape.kv_heads": 1, "shape.head_dim": 256, "dtype.q": "bf16", "device.sm_count": 132,
        "shape.pages": 1, "shape.page_size": PAGE, "attrs.single_page": True,
    }  # fmt: skip
    ready = prepare(facts, {})
    return ready.run, ready.plan(metadata([ROWS], [[0]], [KEYS]))


def fused_layers(layers: Layers, how: str) -> tuple[Callable[[], None], Callable[[], torch.Tensor]]:
    """Norm, qkv with rope and cache write, attention, o with residual; norm, gate_up with activation, down with it."""
    from phyai.facts import Facts
    from phyai_backend_cuda.norms.overlap import kernel_of
    from phyai_backend_cuda.norms.overlap import launch as norm

    form, overlap = layers.form, "overlapped" in how
    qkv, o = shape_of(*EXPERT["qkv"], **form, heads=HEADS), shape_of(*EXPERT["o"], **form, residual=True)
    up, down = (
        shape_of(*EXPERT["gate_up"], **form, activation="gelu_tanh"),
        shape_of(*EXPERT["down"], **form, residual=True),
    )
    release = {"release": "late"} if "late" in how else {}
    ada = kernel_of(Facts({"shape.D": 1024, "dtype.x": "bf16"}), release, adaptive=True)
    triton = prepared("cuda.ada_rms_norm", {"shape.D": 1024}, {}).run if "Triton" in how else None
    attention, state = attention_of()
    x, y, h, gate = (torch.empty_like(layers.first) for _ in range(4))
    gate = gate[:1]
    q, attended, hidden = normal(ROWS, 8, 256), normal(ROWS, 8, 256), normal(ROWS, 4096)
    at, cos_sin = layers.at, layers.cos_sin

    def normed(x: torch.Tensor, modulation: torch.Tensor) -> None:
        if triton is not None:
            triton(x, modulation, out=(h, gate))
        else:
            norm(ada, x, h, eps=1e-6, modulation=modulation, gate=gate, overlap=overlap)

    def run() -> None:
        x.copy_(layers.first)
        for i, held in enumerate(layers.held):
            normed(x, layers.modulations[i, 0])
            more = head_arguments(q, at, at, cos_sin, *layers.caches[i])
            launch(qkv, h, q, operands=held["qkv"], more=more, overlap=overlap)
            attention(q, *layers.caches[i], out=attended, state=state)
            launch(o, attended.flatten(1), y, operands=held["o"], more=residual_arguments(x, gate), overlap=overlap)
            normed(y, layers.modulations[i, 1])
            launch(up, h, hidden, operands=held["gate_up"], overlap=overlap)
            launch(down, hidden, x, operands=held["down"], more=residual_arguments(y, gate), overlap=overlap)

    return run, lambda: x


def separate_layers(layers: Layers) -> tuple[Callable[[], None], Callable[[], torch.Tensor]]:
    """As they were without these launches: the same products, with rotation, write and addition behind them."""
    form = layers.form
    qkv, o, down = (shape_of(*EXPERT[name], **form) for name in ("qkv", "o", "down"))
    up = shape_of(*EXPERT["gate_up"], **form, activation="gelu_tanh")
    ada, add = prepared("cuda.ada_rms_norm", {"shape.D": 1024}, {}).run, prepared("cuda.gated_residual", {}, {}).run
    facts = {"shape.rotary_dim": 256, "attrs.style": "neox"}
    rope, write = prepared("cuda.rope", facts, {"cos_sin": layers.cos_sin}).run, prepared("cuda.kv_write", {}, {}).run
    plain = form["bits"] == 16
    whole = [
        prepared("cuda.qkv_rope_kv_write", facts, {"weight": held["qkv"]["w"], "cos_sin": layers.cos_sin}).run
        for held in layers.held if plain
    ]  # fmt: skip
    attention, state = attention_of()
    x, y = torch.empty_like(layers.first), torch.empty_like(layers.first)
    heads, hidden, branch = normal(ROWS, 2560), normal(ROWS, 4096), normal(ROWS, 1024)
    at = layers.at

    def run() -> None:
        x.copy_(layers.first)
        for i, held in enumerate(layers.held):
            h, gate = ada(x, layers.modulations[i, 0])
            if plain:
                q = whole[i](h, at, *layers.caches[i], at)
            else:
                launch(qkv, h, heads, operands=held["qkv"])
                q, k, v = heads.view(ROWS, 10, 256).split([8, 1, 1], 1)
                q, k = rope(q, k, at)
                write(k, v, *layers.caches[i], at)
            launch(o, attention(q, *layers.caches[i], state=state).flatten(1), branch, operands=held["o"])
            add(x, branch, gate, out=y)
            h, gate = ada(y, layers.modulations[i, 1])
            launch(up, h, hidden, operands=held["gate_up"])
            launch(down, hidden, branch, operands=held["down"])
            add(y, branch, gate, out=x)

    return run, lambda: x
