"""Products of few rows with their epilogues against float64: parts of ``gpu_skinny_fused.py``."""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from gpu_parts import Report
from gpu_skinny_weights import FORMATS, TIMED, normal, shape_of, weight
from phyai_backend_cuda.skinny.epilogues import Heads, head_arguments, residual_arguments
from phyai_backend_cuda.skinny.launch import Shape, launch

FP16 = torch.float16
FORMS: dict[str, dict[str, Any]] = {**FORMATS, "int4 zero points": {"bits": 4, "group": 32, "zero_point": True}}


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
    return shape_of(n, k, **FORMS[form], dtype=dtype, splits=splits, residual=True)


def head_shape(
    form: str, k: int = 1024, heads: int = 8, kv_heads: int = 1, head_dim: int = 256, rotary: int = 256,
    neox: bool = True, dtype: torch.dtype = torch.bfloat16, splits: int | None = None, **_: Any,
) -> Shape:  # fmt: skip
    cut = Heads(heads=heads, kv_heads=kv_heads, head_dim=head_dim, rotary_dim=rotary, neox=neox)
    return shape_of(cut.outputs, k, **FORMS[form], dtype=dtype, splits=splits, heads=cut)


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
    pages: int = 1, page_size: int = 1024, few: int = 0,
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
