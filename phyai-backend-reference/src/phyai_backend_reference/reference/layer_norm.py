"""``reference.layer_norm``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, dtype_of, give, wide


def standardized(x: torch.Tensor, eps: float) -> torch.Tensor:
    """``x`` with mean 0 and variance 1 over its last dimension."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps)


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight, bias = weights.get("weight"), weights.get("bias")
    eps = attribute(facts, "eps", 1e-5)
    dtype = dtype_of(facts, "y")

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        x32, w, b = wide(x, weight, bias)
        y = standardized(x32, eps)
        y = y if w is None else y * w
        return give(y if b is None else y + b, dtype, out)

    return Prepared(run, refresh=in_place(weights))
