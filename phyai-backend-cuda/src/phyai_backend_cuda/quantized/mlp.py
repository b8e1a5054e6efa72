"""``cuda.mlp.fp8_a8`` and ``cuda.gated_mlp.fp8_a8``: four launches each.

::

    x               → FP8 codes, one scale per row (or a static one)
    first product   → torch._scaled_mm, 16 bits
    activation      → in fp32, straight to FP8 codes and scales
    second product  → torch._scaled_mm
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.quantized.kernels import activate_quantize
from phyai_backend_cuda.quantized.product import Fp8Product, placed
from phyai_backend_cuda.triton_rows.common import overlapping


def prepare(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, *, fast: bool = False
) -> Prepared:
    gated = facts["op"] == "gated_mlp"
    names = ("gate_up", "down") if gated else ("fc1", "fc2")
    options = overlapping(facts, params)
    first, second = (
        Fp8Product(
            weights[n], weights.get(f"{n}_bias"), facts.under(f"parts.{n}.quant"), resources, fast=fast, options=options
        )
        for n in names
    )
    activation, dtype = str(facts["attrs.activation"]), torch.bfloat16
    k, n = weights[names[0]].shape[1], weights[names[1]].shape[0]

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        shape = (*x.shape[:-1], n)
        if not x.numel():
            return torch.empty(shape, dtype=dtype, device=x.device) if out is None else out
        hidden = first(*first.quantized(x.reshape(-1, k)), dtype)
        codes, scales = second.empty(len(hidden))
        activate_quantize(hidden, codes, scales, activation, gated=gated, given=second.given, options=options)
        return placed(second, (codes, scales), shape, dtype, out)

    def refresh(new: Mapping[str, Any]) -> None:
        for product, name in zip((first, second), names, strict=True):
            product.refresh(new[name], new.get(f"{name}_bias"))

    return Prepared(run, refresh=refresh)


prepare_fast = functools.partial(prepare, fast=True)
