"""Normalizations, one program to a row: ``rms_norm``, ``rms_norm_add``, ``ada_rms_norm``, ``layer_norm``."""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.triton_rows.common import in_place, output, rows_of, warps


@triton.jit
def _rms_norm(
    x, residual, weight, y, eps, offset, D: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, W: tl.constexpr
):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keep = d < D
    v = tl.load(x + row * D + d, keep, 0.0).to(tl.float32)
    if ADD:
        v += tl.load(residual + row * D + d, keep, 0.0).to(tl.float32)
        tl.store(residual + row * D + d, v, keep)
    v *= tl.rsqrt(tl.sum(v * v) / D + eps)
    if W:
        v *= offset + tl.load(weight + d, keep, 0.0).to(tl.float32)
    tl.store(y + row * D + d, v, keep)


@triton.jit
def _ada_rms_norm(x, modulation, y, gate, eps, per, D: tl.constexpr, BLOCK: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keep = d < D
    group = row // per
    m = modulation + group * (3 * D) + d
    v = tl.load(x + row * D + d, keep, 0.0).to(tl.float32)
    scale, shift = tl.load(m, keep, 0.0).to(tl.float32), tl.load(m + D, keep, 0.0).to(tl.float32)
    v *= tl.rsqrt(tl.sum(v * v) / D + eps)
    tl.store(y + row * D + d, v * (1 + scale) + shift, keep)
    if row % per == 0:
        tl.store(gate + group * D + d, tl.load(m + 2 * D, keep, 0.0), keep)


@triton.jit
def _layer_norm(x, weight, bias, y, eps, D: tl.constexpr, BLOCK: tl.constexpr, W: tl.constexpr, B: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keep = d < D
    v = tl.load(x + row * D + d, keep, 0.0).to(tl.float32)
    v = tl.where(keep, v - tl.sum(v) / D, 0.0)
    v *= tl.rsqrt(tl.sum(v * v) / D + eps)
    if W:
        v *= tl.load(weight + d, keep, 0.0).to(tl.float32)
    if B:
        v += tl.load(bias + d, keep, 0.0).to(tl.float32)
    tl.store(y + row * D + d, v, keep)


def prepare_rms_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    weight = weights.get("weight")
    eps, offset = float(facts.get("attrs.eps", 1e-6)), float(facts.get("attrs.offset", 0))

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y, flat = output(x, out), rows_of(x)
        if len(flat):
            dim = x.shape[-1]
            block = triton.next_power_of_2(dim)
            _rms_norm[(len(flat),)](
                flat, flat, weight, y, eps, offset, dim, block, False, weight is not None, num_warps=warps(block)
            )
        return y

    return Prepared(run, refresh=in_place(weights))


def prepare_rms_norm_add(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    weight = weights["weight"]
    eps, offset = float(facts.get("attrs.eps", 1e-6)), float(facts.get("attrs.offset", 0))

    def run(
        x: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None = None, state: object = None
    ) -> torch.Tensor:
        y, flat = output(x, out), rows_of(x)
        if len(flat):
            dim = x.shape[-1]
            block = triton.next_power_of_2(dim)
            held = residual.contiguous()
            _rms_norm[(len(flat),)](flat, held, weight, y, eps, offset, dim, block, True, True, num_warps=warps(block))
            if held is not residual:
                residual.copy_(held)
        return y

    return Prepared(run, refresh=in_place(weights))


def prepare_ada_rms_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    eps = float(facts.get("attrs.eps", 1e-6))

    def run(
        x: torch.Tensor, modulation: torch.Tensor, out: tuple[torch.Tensor, torch.Tensor] | None = None,
        state: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        y = output(x, out[0] if out else None)
        gate = out[1] if out else torch.empty(*modulation.shape[:-1], x.shape[-1], dtype=x.dtype, device=x.device)
        flat, conditions = rows_of(x), rows_of(modulation)
        if len(flat):
            dim = x.shape[-1]
            block = triton.next_power_of_2(dim)
            per = len(flat) // len(conditions)
            _ada_rms_norm[(len(flat),)](flat, conditions, y, gate, eps, per, dim, block, num_warps=warps(block))
        return y, gate

    return Prepared(run)


def prepare_layer_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    weight, bias = weights.get("weight"), weights.get("bias")
    eps = float(facts.get("attrs.eps", 1e-5))

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y, flat = output(x, out), rows_of(x)
        if len(flat):
            dim = x.shape[-1]
            block = triton.next_power_of_2(dim)
            _layer_norm[(len(flat),)](
                flat, weight, bias, y, eps, dim, block, weight is not None, bias is not None, num_warps=warps(block)
            )
        return y

    return Prepared(run, refresh=in_place(weights))
