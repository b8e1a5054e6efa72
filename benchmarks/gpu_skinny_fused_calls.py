"""Products of few rows with their epilogues beside the launches that they replace: parts of ``gpu_skinny_fused.py``."""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from gpu_parts import BANDWIDTH, CALLS, Report, microseconds
from gpu_skinny_fused_checks import head_shape, residual_shape
from gpu_skinny_weights import EXPERT, FORMATS, TIMED, normal, shape_of, weight
from gpu_table import prepared
from phyai_backend_cuda.skinny.epilogues import head_arguments, residual_arguments
from phyai_backend_cuda.skinny.launch import Shape, launch

ROWS, KEYS, PAGE = 50, 1018, 1024


def floor_us(n: int, k: int, form: Mapping[str, Any]) -> float:
    return round((n * k * form["bits"] / 8 + 100 * (n + k)) / BANDWIDTH * 1e6, 2)


def both(calls: Callable[[bool], list[Callable[[], Any]]]) -> dict[str, float]:
    return {"us": microseconds(calls(False)), "overlapped_us": microseconds(calls(True))}


def times(report: Report) -> None:
    for form_name in TIMED:
        form = FORMATS[form_name]
        for name in ("o", "down"):
            n, k = EXPERT[name]
            row = {"call": f"gemm_gated_residual expert {name} M=50 R=1 N={n} K={k}", "floor_us": floor_us(n, k, form)}
            fused = f"cuda.gemm_gated_residual.skinny_{variant(form_name)}"
            for splits in (None, 2, 4, 8):
                shape = residual_shape(form_name, n, k, splits=splits)
                if shape.objection() is None:
                    what = {**row, "kernel": fused, "format": form_name, "splits": splits}
                    report.attempt("time", what, lambda: both(residual_calls(shape, form)))
            pair = {**row, "kernel": "decomposed.gemm_gated_residual", "format": form_name}
            report.attempt("time", pair, lambda: {"us": microseconds(separate_residual(n, k, form))})
        n, k = EXPERT["qkv"]
        row = {"call": f"qkv_rope_kv_write expert M=50 N={n} K={k}", "floor_us": floor_us(n, k, form)}
        for splits in (None, 1, 4):
            shape = head_shape(form_name, splits=splits)
            what = {**row, "kernel": f"cuda.qkv_rope_kv_write.skinny_{variant(form_name)}", "format": form_name,
                    "splits": splits}  # fmt: skip
            report.attempt("time", what, lambda: both(head_calls(shape, form)))
        pair = {**row, "kernel": "decomposed.qkv_rope_kv_write"}
        report.attempt("time", {**pair, "format": form_name}, lambda: {"us": microseconds(separate_heads(form))})
        floor = round(floor_us(*EXPERT["gate_up"], form) + floor_us(*EXPERT["down"], form), 2)
        row = {"call": "gated_mlp_gated_residual expert M=50 R=1 K=1024 I=4096 N=1024", "floor_us": floor}
        fused = {**row, "kernel": f"cuda.gated_mlp_gated_residual.skinny_{variant(form_name)}", "format": form_name}
        report.attempt("time", fused, lambda: {"us": microseconds(blocks(form, fused=True))})
        pair = {**row, "kernel": "decomposed.gated_mlp_gated_residual", "format": form_name}
        report.attempt("time", pair, lambda: {"us": microseconds(blocks(form, fused=False))})
    row = {"call": "qkv_rope_kv_write expert M=50 N=2560 K=1024", "kernel": "cuda.qkv_rope_kv_write",
           "floor_us": floor_us(*EXPERT["qkv"], FORMATS["bf16"]), "format": "bf16"}  # fmt: skip
    report.attempt("time", row, lambda: {"us": microseconds(triton_heads())})


def variant(form_name: str) -> str:
    return {"bf16": "16bit", "fp8 channel": "fp8", "int4 g128": "int4"}[form_name]


def residual_calls(shape: Shape, form: Mapping[str, Any]) -> Callable[[bool], list[Callable[[], Any]]]:
    made = [
        (weight(shape.n, shape.k, **form, dense=False)[0], normal(ROWS, shape.k), normal(ROWS, shape.n),
         normal(1, shape.n), normal(ROWS, shape.n)) for _ in range(CALLS)
    ]  # fmt: skip

    def calls(overlap: bool) -> list[Callable[[], Any]]:
        return [
            lambda c=c: launch(shape, c[1], c[4], operands=c[0], more=residual_arguments(c[2], c[3]), overlap=overlap)
            for c in made
        ]

    return calls


def separate_residual(n: int, k: int, form: Mapping[str, Any]) -> list[Callable[[], Any]]:
    shape = shape_of(n, k, **form)
    add = prepared("cuda.gated_residual", {}, {}).run
    made = [
        (weight(n, k, **form, dense=False)[0], normal(ROWS, k), normal(ROWS, n), normal(1, n), normal(ROWS, n))
        for _ in range(CALLS)
    ]

    def call(held: Any, x: torch.Tensor, residual: torch.Tensor, gate: torch.Tensor, y: torch.Tensor) -> None:
        launch(shape, x, y, operands=held)
        add(residual, y, gate)

    return [lambda c=c: call(*c) for c in made]


def blocks(form: Mapping[str, Any], *, fused: bool) -> list[Callable[[], Any]]:
    """gate_up with its activation and down, as the rows launch them, with the addition in the last or behind it."""
    up, down = (
        shape_of(*EXPERT["gate_up"], **form, activation="gelu_tanh"), shape_of(*EXPERT["down"], **form, residual=fused)
    )  # fmt: skip
    add = prepared("cuda.gated_residual", {}, {}).run
    made = [
        (weight(up.n, up.k, **form, dense=False)[0], weight(down.n, down.k, **form, dense=False)[0],
         normal(ROWS, 1024), normal(ROWS, 1024), normal(1, 1024)) for _ in range(CALLS)
    ]  # fmt: skip

    def call(first: Any, second: Any, x: torch.Tensor, residual: torch.Tensor, gate: torch.Tensor) -> None:
        hidden, y = x.new_empty(ROWS, up.outputs), torch.empty_like(x)
        launch(up, x, hidden, operands=first)
        launch(down, hidden, y, operands=second, more=residual_arguments(residual, gate) if fused else None)
        if not fused:
            add(residual, y, gate)

    return [lambda c=c: call(*c) for c in made]


def table() -> torch.Tensor:
    angles = torch.arange(PAGE, device="cuda")[:, None] * 10000 ** (-torch.arange(128, device="cuda") / 128)
    return torch.cat((angles.cos(), angles.sin()), 1)


def places() -> torch.Tensor:
    return torch.arange(KEYS - ROWS, KEYS, device="cuda")


def caches() -> torch.Tensor:
    return torch.randn(2, 1, PAGE, 1, 256, device="cuda").bfloat16()


def head_calls(shape: Shape, form: Mapping[str, Any]) -> Callable[[bool], list[Callable[[], Any]]]:
    cos_sin, at = table(), places()
    made = [
        (weight(shape.n, shape.k, **form, dense=False)[0], normal(ROWS, shape.k), normal(ROWS, 8, 256), caches())
        for _ in range(CALLS)
    ]

    def calls(overlap: bool) -> list[Callable[[], Any]]:
        return [
            lambda c=c: launch(
                shape, c[1], c[2], operands=c[0], more=head_arguments(c[2], at, at, cos_sin, *c[3]), overlap=overlap
            )
            for c in made
        ]

    return calls


def separate_heads(form: Mapping[str, Any]) -> list[Callable[[], Any]]:
    shape, cos_sin, at = shape_of(*EXPERT["qkv"], **form), table(), places()
    rope = prepared("cuda.rope", {"shape.rotary_dim": 256, "attrs.style": "neox"}, {"cos_sin": cos_sin}).run
    write = prepared("cuda.kv_write", {}, {}).run
    made = [
        (weight(shape.n, shape.k, **form, dense=False)[0], normal(ROWS, shape.k), normal(ROWS, shape.n), caches())
        for _ in range(CALLS)
    ]

    def call(held: Any, x: torch.Tensor, y: torch.Tensor, cache: torch.Tensor) -> None:
        launch(shape, x, y, operands=held)
        q, k, v = y.view(ROWS, 10, 256).split([8, 1, 1], 1)
        _, k = rope(q, k, at)
        write(k, v, *cache, at)

    return [lambda c=c: call(*c) for c in made]


def triton_heads() -> list[Callable[[], Any]]:
    cos_sin, at = table(), places()
    facts = {"shape.rotary_dim": 256, "attrs.style": "neox"}
    calls = []
    for _ in range(CALLS):
        weights = {"weight": normal(*EXPERT["qkv"]) / 32, "cos_sin": cos_sin}
        run, x, cache = prepared("cuda.qkv_rope_kv_write", facts, weights).run, normal(ROWS, 1024), caches()
        calls.append(lambda run=run, x=x, cache=cache: run(x, at, *cache, at))
    return calls
