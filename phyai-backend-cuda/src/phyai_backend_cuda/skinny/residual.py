"""``cuda.gemm_gated_residual.skinny_*`` and ``cuda.gated_mlp_gated_residual.skinny_*``: products of :mod:`.gemm` whose
last one is multiplied by a gate and added to a residual before it is rounded, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.runtime.early import settling
from phyai_backend_cuda.runtime.memory import output, placed, readable, rows_of, settle
from phyai_backend_cuda.skinny.epilogues import residual_arguments
from phyai_backend_cuda.skinny.gemm import Product


def prepare_gemm(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    product = Product(weights["weight"], weights.get("bias"), facts, params, residual=True)
    product.load(resources.rows)

    def run(
        x: torch.Tensor, residual: torch.Tensor, gate: torch.Tensor, out: torch.Tensor | None = None,
        state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        return added(product, x, residual, gate, out)

    def refresh(new: Mapping[str, Any]) -> None:
        product.refresh(new["weight"], new.get("bias"))

    return settling(run, refresh)


def prepare_mlp(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    gate_up = Product(weights["gate_up"], None, facts, activation=str(facts["attrs.activation"]))
    down = Product(weights["down"], None, facts, residual=True)
    for product in (gate_up, down):
        product.load(resources.rows)

    def run(
        x: torch.Tensor, residual: torch.Tensor, gate: torch.Tensor, out: torch.Tensor | None = None,
        state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        return added(down, gate_up(x), residual, gate, out)

    def refresh(new: Mapping[str, Any]) -> None:
        gate_up.refresh(new["gate_up"], None)
        down.refresh(new["down"], None)

    return settling(run, refresh)


def added(
    product: Product, x: torch.Tensor, residual: torch.Tensor, gate: torch.Tensor, out: torch.Tensor | None
) -> torch.Tensor:
    """``residual + gate * product(x)``: row m has row ``m // (M // R)`` of the R rows of the gate."""
    y = output(residual, out)
    if y.numel():
        place = placed(y, product.shape.stored)
        onto, gates = readable(rows_of(residual)), readable(rows_of(gate))
        product.launch(x, place, residual_arguments(onto, gates))
        settle(y, place)
    return y
