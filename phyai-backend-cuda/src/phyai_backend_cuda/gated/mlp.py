"""``cuda.gated_mlp.bf16`` and ``cuda.gated_mlp.fp8_a8_fused``: the first product and its activation in one launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.gated.product import GatedProduct
from phyai_backend_cuda.quantized.product import Fp8Product, placed
from phyai_backend_cuda.triton_rows.common import overlapping


def aligned(matrix: torch.Tensor) -> torch.Tensor:
    """``[rows, columns]`` as the copy engine reads it: rows without gaps, beginning at multiples of 16 bytes."""
    step = matrix.stride(0) * matrix.element_size()
    return matrix if matrix.stride(1) == 1 and not (step | matrix.data_ptr()) % 16 else matrix.clone(
        memory_format=torch.contiguous_format
    )  # fmt: skip


def _product(facts: Facts, weight: torch.Tensor, *scales: torch.Tensor | None) -> GatedProduct:
    return GatedProduct(weight, str(facts["attrs.activation"]), whole(facts, "device.sm_count", 132), *scales)


def prepare_bf16(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    gate_up, down = aligned(weights["gate_up"]), weights["down"]
    product = _product(facts, gate_up)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        rows = aligned(x.reshape(-1, x.shape[-1]))
        h = torch.empty(len(rows), product.width, dtype=x.dtype, device=x.device)
        product(rows, None, h)
        shape = (*x.shape[:-1], down.shape[0])
        if out is not None and out.is_contiguous():
            torch.mm(h, down.T, out=out.view(-1, shape[-1]))
            return out
        y = torch.mm(h, down.T).view(shape)
        return y if out is None else out.copy_(y)

    def refresh(new: Mapping[str, Any]) -> None:
        gate_up.copy_(new["gate_up"])
        down.copy_(new["down"])

    return Prepared(run, refresh=refresh)


def prepare_fp8(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    options = overlapping(facts, params)
    first, second = (
        Fp8Product(weights[part], None, facts.under(f"parts.{part}.quant"), resources, fast=True, options=options)
        for part in ("gate_up", "down")
    )
    product = _product(facts, first.codes, first.scale, second.given)

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
