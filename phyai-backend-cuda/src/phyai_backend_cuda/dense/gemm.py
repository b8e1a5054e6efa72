"""``cuda.gemm.dense_16bit`` and ``cuda.mlp.dense_16bit``: one launch, and two with the activation in the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.dense.product import Product
from phyai_backend_cuda.runtime.early import prepared_gemm
from phyai_backend_cuda.runtime.launch import settled


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    return prepared_gemm(Product(weights["weight"], weights.get("bias"), facts), resources.rows)


def prepare_mlp(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    first = Product(weights["fc1"], weights.get("fc1_bias"), facts, activation=str(facts["attrs.activation"]))
    second = Product(weights["fc2"], weights.get("fc2_bias"), facts)
    for product in (first, second):
        product.load(resources.rows)
    settled()

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        return second(first(x), out)

    def refresh(new: Mapping[str, Any]) -> None:
        first.refresh(new["fc1"], new.get("fc1_bias"))
        second.refresh(new["fc2"], new.get("fc2_bias"))
        settled()

    return Prepared(run, refresh=refresh)
