"""``cuda.gated_mlp.skinny_*``: two launches of :mod:`.launch`, the activation in the first one's epilogue.

The second overlaps the first: it asks for its weights while the first still computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.runtime.early import settling
from phyai_backend_cuda.skinny.gemm import Product


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    gate_up = Product(weights["gate_up"], None, facts, activation=str(facts["attrs.activation"]))
    down = Product(weights["down"], None, facts)
    for product in (gate_up, down):
        product.load(resources.rows)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        return down(gate_up(x), out)

    def refresh(new: Mapping[str, Any]) -> None:
        gate_up.refresh(new["gate_up"], None)
        down.refresh(new["down"], None)

    return settling(run, refresh)
