"""``cuda.gemm.fp8_a8``: inputs quantized in one launch, then the product of codes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.quantized.product import placed, product_of
from phyai_backend_cuda.triton_rows.common import overlapping

OUTPUTS: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def prepare(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, *, fast: bool = False
) -> Prepared:
    options = overlapping(facts, params)
    product = product_of(
        weights["weight"], weights.get("bias"), facts.under("quant"), resources, fast=fast, options=options
    )
    dtype, (n, k) = OUTPUTS[str(facts["dtype.y"])], weights["weight"].shape

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        shape = (*x.shape[:-1], n)
        if not x.numel():
            return torch.empty(shape, dtype=dtype, device=x.device) if out is None else out
        return placed(product, product.quantized(x.reshape(-1, k)), shape, dtype, out)

    def refresh(new: Mapping[str, Any]) -> None:
        product.refresh(new["weight"], new.get("bias"))

    return Prepared(run, refresh=refresh)


prepare_fast = functools.partial(prepare, fast=True)
