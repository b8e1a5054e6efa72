"""``reference.gemm``: ``y = x @ weight.T + bias``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import dtype_of, give, wide


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight, bias = weights["weight"], weights.get("bias")
    dtype = dtype_of(facts, "y")

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        x, w, b = wide(x, weight, bias)
        y = x @ w.T
        return give(y if b is None else y + b, dtype, out)

    return Prepared(run, refresh=in_place(weights))
