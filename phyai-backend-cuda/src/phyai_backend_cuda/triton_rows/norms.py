"""Normalizations, one program to a row: ``rms_norm``, ``ada_rms_norm``, ``layer_norm``, and those with an addition."""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from phyai.facts import Facts, number
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_cuda.norms.calls import run_of
from phyai_backend_cuda.runtime.memory import contiguous, output, rows_of, settle
from phyai_backend_cuda.triton_rows.common import overlapping, wait_previous, warps


@triton.jit
def _rms_norm(
    x, residual, weight, y, x_step, residual_step, y_step, eps, offset,
    D: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, W: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    wait_previous(OVERLAP)
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keep = d < D
    v = tl.load(x + row * x_step + d, keep, 0.0).to(tl.float32)
    if ADD:
        v += tl.load(residual + row * residual_step + d, keep, 0.0).to(tl.float32)
        tl.store(residual + row * residual_step + d, v, keep)
    v *= tl.rsqrt(tl.sum(v * v) / D + eps)
    if W:
        v *= offset + tl.load(weight + d, keep, 0.0).to(tl.float32)
    tl.store(y + row * y_step + d, v, keep)


@triton.jit(do_not_specialize=["per"])
def _ada_rms_norm(
    x, modulation, y, gate, x_step, modulation_step, y_step, gate_step, eps, per, D: tl.constexpr, BLOCK: tl.constexpr
):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keep = d < D
    group = (tl.program_id(0) // per).to(tl.int64)
    m = modulation + group * modulation_step + d
    v = tl.load(x + row * x_step + d, keep, 0.0).to(tl.float32)
    scale, shift = tl.load(m, keep, 0.0).to(tl.float32), tl.load(m + D, keep, 0.0).to(tl.float32)
    v *= tl.rsqrt(tl.sum(v * v) / D + eps)
    tl.store(y + row * y_step + d, v * (1 + scale) + shift, keep)
    if tl.program_id(0) % per == 0:
        tl.store(gate + group * gate_step + d, tl.load(m + 2 * D, keep, 0.0), keep)


@triton.jit
def _layer_norm(
    x, residual, weight, bias, y, x_step, residual_step, y_step, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, W: tl.constexpr, B: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    wait_previous(OVERLAP)
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keep = d < D
    v = tl.load(x + row * x_step + d, keep, 0.0).to(tl.float32)
    if ADD:
        v += tl.load(residual + row * residual_step + d, keep, 0.0).to(tl.float32)
        tl.store(residual + row * residual_step + d, v, keep)
    v = tl.where(keep, v - tl.sum(v) / D, 0.0)
    v *= tl.rsqrt(tl.sum(v * v) / D + eps)
    if W:
        v *= tl.load(weight + d, keep, 0.0).to(tl.float32)
    if B:
        v += tl.load(bias + d, keep, 0.0).to(tl.float32)
    tl.store(y + row * y_step + d, v, keep)


def _prepared(
    kernel: Any, weights: Mapping[str, Any], names: tuple[str, ...], numbers: tuple[float, ...],
    options: Mapping[str, bool], *, add: bool,
) -> Prepared:  # fmt: skip
    """``names`` are the kernel's vectors, each of which may be absent, and ``numbers`` what follows the steps."""
    held = contiguous(weights)
    vectors = [held.get(name) for name in names]

    def norm(x: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor | None) -> torch.Tensor:
        y = output(x, out)
        if not y.numel():
            return y
        rows, given = rows_of(x), rows_of(y)
        added = rows if residual is None else rows_of(residual)
        block = triton.next_power_of_2(rows.shape[1])
        kernel[(len(rows),)](
            rows, added, *vectors, given, rows.stride(0), added.stride(0), given.stride(0), *numbers, rows.shape[1],
            block, residual is not None, *(vector is not None for vector in vectors), bool(options),
            num_warps=warps(block), **options,
        )  # fmt: skip
        settle(y, given)
        if residual is not None:
            settle(residual, added)
        return y

    return Prepared(run_of(norm, add=add), refresh=in_place(held))


def prepare_rms_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, *, add: bool = False
) -> Prepared:
    numbers = number(facts, "attrs.eps", 1e-6), number(facts, "attrs.offset", 0)
    return _prepared(_rms_norm, weights, ("weight",), numbers, overlapping(facts, params), add=add)


def prepare_layer_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, *, add: bool = False
) -> Prepared:
    numbers = (number(facts, "attrs.eps", 1e-5),)
    return _prepared(_layer_norm, weights, ("weight", "bias"), numbers, overlapping(facts, params), add=add)


prepare_rms_norm_add = functools.partial(prepare_rms_norm, add=True)
prepare_layer_norm_add = functools.partial(prepare_layer_norm, add=True)


def prepare_ada_rms_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    eps = number(facts, "attrs.eps", 1e-6)

    def run(
        x: torch.Tensor, modulation: torch.Tensor, out: tuple[torch.Tensor, torch.Tensor] | None = None,
        state: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        dim = x.shape[-1]
        y = output(x, out[0] if out else None)
        gate = output(x, out[1] if out else None, *modulation.shape[:-1], dim)
        if y.numel():
            rows, conditions, given, gates = rows_of(x), rows_of(modulation), rows_of(y), rows_of(gate)
            block = triton.next_power_of_2(dim)
            _ada_rms_norm[(len(rows),)](
                rows, conditions, given, gates, rows.stride(0), conditions.stride(0), given.stride(0), gates.stride(0),
                eps, len(rows) // len(conditions), dim, block, num_warps=warps(block),
            )  # fmt: skip
            settle(y, given)
            settle(gate, gates)
        else:  # conditions without rows have gates all the same
            gate.copy_(modulation[..., 2 * dim :])
        return y, gate

    return Prepared(run)
