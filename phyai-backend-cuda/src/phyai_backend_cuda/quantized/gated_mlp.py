"""``cuda.gated_mlp.fp8_a8``: four launches, and nothing between the products in 16 bits but the first one's result.

::

    x           → FP8 codes, one scale per row (or a static one)
    gate_up     → torch._scaled_mm, 16 bits
    activation  → gate · up in fp32, straight to FP8 codes and scales
    down        → torch._scaled_mm
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.quantized.kernels import gated_quantize
from phyai_backend_cuda.quantized.product import Fp8Product, placed


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    return _prepare(facts, weights, resources, fast=False)


def prepare_fast(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    return _prepare(facts, weights, resources, fast=True)


def _prepare(facts: Facts, weights: Mapping[str, Any], resources: Resources, *, fast: bool) -> Prepared:
    first, second = (
        Fp8Product(weights[part], None, facts.under(f"parts.{part}.quant"), resources, fast=fast)
        for part in ("gate_up", "down")
    )
    activation, dtype = str(facts["attrs.activation"]), torch.bfloat16
    k, n = weights["gate_up"].shape[1], weights["down"].shape[0]

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        shape = (*x.shape[:-1], n)
        if not x.numel():
            return torch.empty(shape, dtype=dtype, device=x.device) if out is None else out
        hidden = first(*first.quantized(x.reshape(-1, k)), dtype)
        codes, scales = second.empty(len(hidden))
        gated_quantize(hidden, codes, scales, activation, given=second.given)
        return placed(second, (codes, scales), shape, dtype, out)

    def refresh(new: Mapping[str, Any]) -> None:
        first.refresh(new["gate_up"], None)
        second.refresh(new["down"], None)

    return Prepared(run, refresh=refresh)
