"""``cuda.gated_mlp.fp8_a8_fused``: the first product and its activation in one launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.gated.product import GatedProduct
from phyai_backend_cuda.quantized.product import Fp8Product, placed
from phyai_backend_cuda.triton_rows.common import overlapping


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    options = overlapping(facts, params)
    first, second = (
        Fp8Product(weights[part], None, facts.under(f"parts.{part}.quant"), resources, fast=True, options=options)
        for part in ("gate_up", "down")
    )
    activation, processors = str(facts["attrs.activation"]), whole(facts, "device.sm_count", 132)
    product = GatedProduct(first.codes, first.scale, activation, processors, second.given)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        codes, scales = first.quantized(x.reshape(-1, x.shape[-1]))
        if second.given is None:
            h = torch.empty(len(codes), product.width, dtype=torch.bfloat16, device=x.device)
            product(codes, scales, h)
            hidden = second.quantized(h)
        else:
            h = torch.empty(len(codes), product.width, dtype=torch.float8_e4m3fn, device=x.device)
            product(codes, scales, h)
            hidden = h, second.given.expand(len(h)).contiguous() if second.by_rows else second.given
        return placed(second, hidden, (*x.shape[:-1], second.weight.shape[0]), torch.bfloat16, out)

    def refresh(new: Mapping[str, Any]) -> None:
        first.refresh(new["gate_up"], None)
        second.refresh(new["down"], None)

    return Prepared(run, refresh=refresh)
