"""``gated_residual`` and ``gated_activation``: one pass over memory."""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.triton_rows.common import output, rows_of, warps

BLOCK = 1024


@triton.jit
def _gated_residual(residual, x, gate, y, per, D: tl.constexpr, BLOCK: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keep = d < D
    at = row * D + d
    v = tl.load(x + at, keep, 0.0).to(tl.float32) * tl.load(gate + row // per * D + d, keep, 0.0).to(tl.float32)
    tl.store(y + at, tl.load(residual + at, keep, 0.0).to(tl.float32) + v, keep)


@triton.jit
def _gated_activation(x, y, n, width, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    row, col = at // width, at % width
    gate = tl.load(x + row * 2 * width + col, keep, 0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + col, keep, 0.0).to(tl.float32)
    if KIND == "silu":
        gate *= tl.sigmoid(gate)
    elif KIND == "gelu":
        gate *= 0.5 * (1 + tl.erf(gate * 0.7071067811865476))
    else:  # gelu_tanh: (1 + tanh(u)) / 2 = sigmoid(2u)
        gate *= tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    tl.store(y + at, gate * up, keep)


def prepare_gated_residual(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    def run(
        residual: torch.Tensor, x: torch.Tensor, gate: torch.Tensor, out: torch.Tensor | None = None,
        state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        y, flat, gates = output(residual, out), rows_of(residual), rows_of(gate)
        if len(flat):
            dim = flat.shape[1]
            block = triton.next_power_of_2(dim)
            per = len(flat) // len(gates)
            _gated_residual[(len(flat),)](flat, rows_of(x), gates, y, per, dim, block, num_warps=warps(block))
        return y

    return Prepared(run)


def prepare_gated_activation(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    kind = str(facts["attrs.activation"])

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        width = x.shape[-1] // 2
        y, flat = output(x, out, *x.shape[:-1], width), rows_of(x)
        n = len(flat) * width
        if n:
            _gated_activation[(triton.cdiv(n, BLOCK),)](flat, y, n, width, kind, BLOCK)
        return y

    return Prepared(run)
