"""``cuda.gemm.dense_fp8_a8``: inputs quantized in one launch, then one of ``csrc/dense.cu``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.dense.product import Product
from phyai_backend_cuda.quantized.product import Fp8Product
from phyai_backend_cuda.runtime.launch import settled
from phyai_backend_cuda.runtime.memory import placed, settle
from phyai_backend_cuda.triton_rows.common import overlapping


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    options = overlapping(facts, params)
    coded = Fp8Product(
        weights["weight"], weights.get("bias"), facts.under("quant"), resources, fast=True, options=options
    )
    product = Product(coded.codes, coded.bias, facts)
    product.load(resources.rows)
    settled()
    n, k = coded.codes.shape

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y = torch.empty(*x.shape[:-1], n, dtype=torch.bfloat16, device=x.device) if out is None else out
        if y.numel():
            codes, scales = coded.quantized(x.reshape(-1, k))
            place = placed(y, 8)
            product.launch(codes, place, scales, coded.scale)
            settle(y, place)
        return y

    def refresh(new: Mapping[str, Any]) -> None:
        coded.refresh(new["weight"], new.get("bias"))
        settled()

    return Prepared(run, refresh=refresh)
