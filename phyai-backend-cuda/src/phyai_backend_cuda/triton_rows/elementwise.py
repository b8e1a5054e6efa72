"""``gated_residual``, ``gated_activation`` and ``embedding``: one pass over memory."""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from phyai.facts import Facts, number, whole
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_cuda.runtime.memory import contiguous, output, rows_of, settle
from phyai_backend_cuda.triton_rows.common import warps

BLOCK = 1024


@triton.jit(do_not_specialize=["per"])
def _gated_residual(
    residual, x, gate, y, residual_step, x_step, gate_step, y_step, per, D: tl.constexpr, BLOCK: tl.constexpr
):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keep = d < D
    g = tl.load(gate + (tl.program_id(0) // per).to(tl.int64) * gate_step + d, keep, 0.0).to(tl.float32)
    v = tl.load(x + row * x_step + d, keep, 0.0).to(tl.float32) * g
    tl.store(y + row * y_step + d, tl.load(residual + row * residual_step + d, keep, 0.0).to(tl.float32) + v, keep)


@triton.jit
def _gated_activation(x, y, x_step, y_step, width, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = d < width
    gate = tl.load(x + row * x_step + d, keep, 0.0).to(tl.float32)
    up = tl.load(x + row * x_step + width + d, keep, 0.0).to(tl.float32)
    if KIND == "silu":
        gate *= tl.sigmoid(gate)
    elif KIND == "gelu":
        gate *= 0.5 * (1 + tl.erf(gate * 0.7071067811865476))
    else:  # gelu_tanh: (1 + tanh(u)) / 2 = sigmoid(2u)
        gate *= tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    tl.store(y + row * y_step + d, gate * up, keep)


@triton.jit(do_not_specialize=["start", "end"])
def _embedding(ids, weight, y, y_step, start, end, scale, width, SCALED: tl.constexpr, BLOCK: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = d < width
    index = tl.load(ids + row).to(tl.int64)
    inside = (index >= start) & (index < end)
    v = tl.load(weight + (index - start) * width + d, keep & inside, 0.0)
    if SCALED:
        v = v.to(tl.float32) * scale
    tl.store(y + row * y_step + d, v, keep)


def prepare_gated_residual(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    def run(
        residual: torch.Tensor, x: torch.Tensor, gate: torch.Tensor, out: torch.Tensor | None = None,
        state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        y = output(residual, out)
        if y.numel():
            r, rows, gates, given = rows_of(residual), rows_of(x), rows_of(gate), rows_of(y)
            block = triton.next_power_of_2(r.shape[1])
            _gated_residual[(len(r),)](
                r, rows, gates, given, r.stride(0), rows.stride(0), gates.stride(0), given.stride(0),
                len(r) // len(gates), r.shape[1], block, num_warps=warps(block),
            )  # fmt: skip
            settle(y, given)
        return y

    return Prepared(run)


def prepare_gated_activation(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    kind = str(facts["attrs.activation"])

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        width = x.shape[-1] // 2
        y = output(x, out, *x.shape[:-1], width)
        if y.numel():
            rows, given = rows_of(x), rows_of(y)
            block = min(BLOCK, triton.next_power_of_2(width))
            _gated_activation[(len(rows), triton.cdiv(width, block))](
                rows, given, rows.stride(0), given.stride(0), width, kind, block
            )
            settle(y, given)
        return y

    return Prepared(run)


def prepare_embedding(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    held = contiguous(weights)
    weight = held["weight"]
    width = weight.shape[1]
    start = whole(facts, "attrs.start", 0)
    end = whole(facts, "attrs.end", start + len(weight))
    scaled, scale = "attrs.scale" in facts, number(facts, "attrs.scale", 1)
    block = min(BLOCK, triton.next_power_of_2(width))

    def run(ids: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y = output(weight, out, *ids.shape, width)
        if y.numel():
            given = rows_of(y)
            _embedding[(len(given), triton.cdiv(width, block))](
                ids.contiguous(), weight, given, given.stride(0), start, end, scale, width, scaled, block,
            )  # fmt: skip
            settle(y, given)
        return y

    return Prepared(run, refresh=in_place(held))
