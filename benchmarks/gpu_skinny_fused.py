"""Products of few rows with what belongs to them in one launch: checked against float64, then µs in a CUDA graph beside
the launches that they replace; then layers of π0.5's expert, one after another; then the whole inference.

    python benchmarks/gpu_skinny_fused.py --out benchmarks/results/skinny_fused.json

Figures are made as in ``gpu_skinny.py``. ``layer``: 18 layers of the expert at 50 rows over 1,018 keys, each launch
reading what the one in front wrote, µs of a layer.
"""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from gpu_attention import metadata, prepare, reference
from gpu_parts import BANDWIDTH, CALLS, Report, compiled, main_of, microseconds
from gpu_skinny import EXPERT, FORMATS, TIMED, normal, weight
from gpu_table import prepared
from phyai_backend_cuda.skinny.epilogues import Heads, head_arguments, residual_arguments
from phyai_backend_cuda.skinny.launch import Shape, launch, shape_for

F = torch.nn.functional
ROWS, KEYS, PAGE = 50, 1018, 1024
HEADS = Heads(heads=8, kv_heads=1, head_dim=256, rotary_dim=256)
FP16 = torch.float16
FORMS: dict[str, dict[str, Any]] = {**FORMATS, "int4 zero points": {"bits": 4, "group": 32, "zero_point": True}}


def shape_of(
    n: int, k: int, form: Mapping[str, Any], dtype: torch.dtype = torch.bfloat16, splits: int | None = None,
    **epilogue: Any,
) -> Shape:  # fmt: skip
    import attrs

    given = {"centred" if name == "zero_point" else name: value for name, value in form.items()}
    shape = shape_for(n, k, half=dtype == FP16, **given, **epilogue)
    assert shape is not None, "no shape"
    return shape if splits is None else attrs.evolve(shape, splits=splits)


# ---- checks


def sweep(form: str) -> Iterator[dict[str, Any]]:
    """Numbers of rows, and how many of them are multiplied by themselves as well: a row's result does not depend on the
    others."""
    for m, few in ((1, 1), (10, 1), (17, 10), (50, 17), (51, 10), (64, 50)) if form in TIMED else ((50, 50),):
        yield {"form": form, "m": m, "few": few}


def residual_cases() -> Iterator[dict[str, Any]]:
    for form in FORMS:
        yield from ({"n": 1024, "k": 2048, **case} for case in sweep(form))
        yield {"form": form, "m": 50, "n": 1024, "k": 2048, "dtype": FP16, "bias": True}
    for form in TIMED:
        yield {"form": form, "m": 50, "n": 1024, "k": 4096, "r": 2}
        yield {"form": form, "m": 64, "n": 1024, "k": 2048, "dtype": FP16, "r": 64}
        yield from ({"form": form, "m": 50, "n": 1024, "k": 1024, "splits": splits} for splits in (1, 2, 8))
        yield {"form": form, "m": 49, "n": 136, "k": 512, "bias": True, "r": 7}
        yield {"form": form, "m": 64, "n": 72, "k": 8192, "bias": True, "r": 4}


def head_cases() -> Iterator[dict[str, Any]]:
    for form in FORMS:
        yield from sweep(form)
        yield {"form": form, "m": 50, "dtype": FP16, "bias": True}
    odd = {"k": 512, "heads": 3, "kv_heads": 2, "head_dim": 96, "bias": True, "pages": 5, "page_size": 48}
    for form in TIMED:
        yield from ({"form": form, "m": 50, "splits": splits} for splits in (1, 4, 8))
        yield from ({"form": form, "m": m, "rotary": 64, **odd} for m in (17, 64))
        yield from ({"form": form, "m": m, "rotary": 30, "neox": False, **odd} for m in (17, 64))
        yield {"form": form, "m": 64, "rotary": 96, "neox": False, "dtype": FP16, **odd}
        yield {"form": form, "m": 50, "rotary": 32, "heads": 3, "kv_heads": 1, "head_dim": 32, "k": 128}
        yield {"form": form, "m": 64, "rotary": 128, "heads": 4, "kv_heads": 1, "head_dim": 128, "k": 8192}


def residual_shape(
    form: str, n: int, k: int, dtype: torch.dtype = torch.bfloat16, splits: int | None = None, **_: Any
) -> Shape:
    return shape_of(n, k, FORMS[form], dtype, splits, residual=True)


def head_shape(
    form: str, k: int = 1024, heads: int = 8, kv_heads: int = 1, head_dim: int = 256, rotary: int = 256,
    neox: bool = True, dtype: torch.dtype = torch.bfloat16, splits: int | None = None, **_: Any,
) -> Shape:  # fmt: skip
    cut = Heads(heads=heads, kv_heads=kv_heads, head_dim=head_dim, rotary_dim=rotary, neox=neox)
    return shape_of(cut.outputs, k, FORMS[form], dtype, splits, heads=cut)


def check_residual(report: Report) -> None:
    for case in residual_cases():
        report.attempt("check residual", case, lambda: checked_residual(**case))


def check_heads(report: Report) -> None:
    for case in head_cases():
        report.attempt("check heads", case, lambda: checked_heads(**case))


def judged(got: list[torch.Tensor], want: list[torch.Tensor], twice: bool, splits: int) -> dict[str, Any]:
    errors = [float((g.double() - w).norm() / w.norm()) for g, w in zip(got, want, strict=True)]
    found = {"splits": splits, "errors": errors, "same": twice}
    if not max(errors) < 3e-3 or not twice:
        raise AssertionError(found)
    return found


def checked_residual(
    form: str, m: int, n: int, k: int, r: int = 1, dtype: torch.dtype = torch.bfloat16, bias: bool = False,
    splits: int | None = None, few: int = 0,
) -> dict[str, Any]:  # fmt: skip
    shape = residual_shape(form, n, k, dtype, splits)
    held, dense = weight(n, k, dtype=dtype, **FORMS[form])
    assert dense is not None
    x, residual, gate = normal(m, k, dtype=dtype), normal(m, n, dtype=dtype), normal(r, n, dtype=dtype)
    added = normal(n, dtype=dtype) if bias else None
    product = x.double() @ dense.T + (0 if added is None else added.double())
    want = residual.double() + gate.double().repeat_interleave(m // r, 0) * product
    ys = [torch.full((m, n), torch.nan, dtype=dtype, device="cuda") for _ in range(2)]
    for y in ys:
        launch(shape, x.clone(), y, operands=held, bias=added, more=residual_arguments(residual, gate))
    few = few or m
    part = torch.empty(few, n, dtype=dtype, device="cuda")
    launch(shape, x[:few], part, operands=held, bias=added, more=residual_arguments(residual[:few], gate))
    return judged([ys[0]], [want], torch.equal(*ys) and torch.equal(part, ys[0][:few]), shape.splits)


def rotated(x: torch.Tensor, table: torch.Tensor, neox: bool) -> torch.Tensor:
    """Heads ``[M, heads, head_dim]`` by the cosines and sines ``[M, rotary]`` of their positions, in float64."""
    half = table.shape[1] // 2
    cos, sin = (t.double()[:, None] for t in table.split(half, 1))
    head, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = head.chunk(2, -1) if neox else (head[..., 0::2], head[..., 1::2])
    a, b = a * cos - b * sin, b * cos + a * sin
    turned = torch.cat((a, b), -1) if neox else torch.stack((a, b), -1).flatten(-2)
    return torch.cat((turned, rest), -1)


def checked_heads(
    form: str, m: int, k: int = 1024, heads: int = 8, kv_heads: int = 1, head_dim: int = 256, rotary: int = 256,
    neox: bool = True, dtype: torch.dtype = torch.bfloat16, bias: bool = False, splits: int | None = None,
    pages: int = 1, page_size: int = PAGE, few: int = 0,
) -> dict[str, Any]:  # fmt: skip
    shape = head_shape(form, k, heads, kv_heads, head_dim, rotary, neox, dtype, splits)
    held, dense = weight(shape.n, k, dtype=dtype, **FORMS[form])
    assert dense is not None
    x, added = normal(m, k, dtype=dtype), normal(shape.n, dtype=dtype) if bias else None
    angles = torch.rand(2000, rotary // 2, device="cuda") * 6
    table = torch.cat((angles.cos(), angles.sin()), 1)
    positions = torch.randint(0, 2000, (m,), device="cuda")
    if m % 2:
        positions = positions.int()
    slots = torch.randperm(pages * page_size, device="cuda")[:m]
    y = (x.double() @ dense.T + (0 if added is None else added.double())).view(m, -1, head_dim)
    q, k_new, v_new = y.split([heads, kv_heads, kv_heads], 1)
    wanted = [rotated(t, table[positions], neox) for t in (q, k_new)]
    # pages with gaps between them where there are several, and heads of an output that lie apart
    space = torch.full((2, pages, page_size + (pages > 1), kv_heads, head_dim), 7.0, dtype=dtype, device="cuda")
    room = torch.full((2, m, heads, head_dim + 2 * (m % 2)), 7.0, dtype=dtype, device="cuda")
    outs, states = [], []
    for i in range(2):
        caches, out = space[:, :, :page_size], room[i, ..., :head_dim]
        more = head_arguments(out, positions, slots, table, *caches)
        launch(shape, x.clone(), out, operands=held, bias=added, more=more)
        outs.append(out.clone())
        states.append(space.clone())
    written = [cache[slots // page_size, slots % page_size] for cache in space]
    untouched = space.clone()
    untouched[:, slots // page_size, slots % page_size] = 7.0
    if not bool((untouched == 7.0).all()) or not bool((room[..., head_dim:] == 7.0).all()):
        raise AssertionError("it wrote where nothing of it belongs")
    few = few or m
    part = torch.empty(few, heads, head_dim, dtype=dtype, device="cuda")
    spare = torch.zeros_like(space)[:, :, :page_size]
    more = head_arguments(part, positions[:few], slots[:few], table, *spare)
    launch(shape, x[:few], part, operands=held, bias=added, more=more)
    twice = torch.equal(*outs) and torch.equal(*states) and torch.equal(part, outs[0][:few])
    return judged([outs[0], *written], [*wanted, v_new], twice, shape.splits)


# ---- times


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
    shape = shape_of(n, k, form)
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
        shape_of(*EXPERT["gate_up"], form, activation="gelu_tanh"), shape_of(*EXPERT["down"], form, residual=fused)
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
    shape, cos_sin, at = shape_of(*EXPERT["qkv"], form), table(), places()
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


# ---- layers


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
    qkv, o = shape_of(*EXPERT["qkv"], form, heads=HEADS), shape_of(*EXPERT["o"], form, residual=True)
    up, down = (
        shape_of(*EXPERT["gate_up"], form, activation="gelu_tanh"),
        shape_of(*EXPERT["down"], form, residual=True),
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
    qkv, o, down = (shape_of(*EXPERT[name], form) for name in ("qkv", "o", "down"))
    up = shape_of(*EXPERT["gate_up"], form, activation="gelu_tanh")
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


# ---- the whole inference


def inference(report: Report) -> None:
    """``phyai bench`` under the policies whose experts run layer by layer."""
    folder, layers_only = Path(__file__).parents[1] / "policies" / "pi05", report.out.parent / "layers_only.yaml"
    fused = (
        "qkv_rope_kv_write.skinny_16bit", "gemm_gated_residual.skinny_16bit", "gated_mlp_gated_residual.skinny_16bit",
        "ada_rms_norm.overlap",
    )  # fmt: skip
    rules = [
        f"  - {{id: {op}, match: {{op: {op}, role: expert}}, restrict_to: cuda.{op}.{kernel}}}"
        for op, kernel in (id.split(".") for id in fused)
    ]
    rules.append("  - {id: layers, match: {op: expert_steps}, restrict_to: decomposed.expert_steps}")
    text = [(folder / "h200_fp8.yaml").read_text(), "overrides:", *rules, ""]
    layers_only.write_text("\n".join(text))
    for policy in (layers_only, folder / "h200_int4_expert.yaml"):
        row = {"call": "pi05, 3 cameras", "policy": policy.name}
        report.attempt("inference", row, lambda: benched(policy))


def benched(policy: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "phyai", "bench", "pi05", "--random-weights", "--exact", "--policy", str(policy)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=140, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    return {"bench": json.loads(done.stdout)}


def ahead(pool: Any) -> None:
    """Compile what will be needed side by side."""
    shapes = [(residual_shape(**case), case["m"]) for case in residual_cases()]
    shapes += [(head_shape(**case), case["m"]) for case in head_cases()]
    for form_name in TIMED:
        form = FORMATS[form_name]
        shapes += [
            (residual_shape(form_name, *EXPERT[n], splits=s), 50) for n in ("o", "down") for s in (None, 2, 4, 8)
        ]
        shapes += [(head_shape(form_name, splits=splits), 50) for splits in (None, 1, 4)]
        shapes += [(shape_of(*EXPERT[name], form), 50) for name in EXPERT]
        shapes.append((shape_of(*EXPERT["gate_up"], form, activation="gelu_tanh"), 50))
    shapes = [(shape, m) for shape, m in shapes if shape.objection() is None]
    for source in ("skinny.cu", "skinny_pair.cu"):
        defines = [shape.defines(m) for shape, m in shapes if shape.source == source]
        compiled(pool, source, list({tuple(sorted(d.items())): d for d in defines}.values()))
    compiled(pool, "attention.cu", [{"HD": 256, "GROUP": 8, "SLABS": 1, "SPLITS": s, "STAGES": 1} for s in (1, 16)])
    compiled(pool, "norm.cu", [{"DIM": 1024, "ADD": 0, "ADAPTIVE": 1, "LATE": late} for late in (0, 1)])


if __name__ == "__main__":
    parts = {
        "check_residual": check_residual, "check_heads": check_heads, "times": times, "layer": layer,
        "inference": inference,
    }  # fmt: skip
    main_of(argparse.ArgumentParser(description=__doc__), parts, ahead)
