"""``reference.rms_norm``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, dtype_of, give, wide


def normalized(x: torch.Tensor, eps: float) -> torch.Tensor:
    """``x`` divided by the root mean square of its last dimension."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight = weights.get("weight")
    eps, offset = attribute(facts, "eps", 1e-6), attribute(facts, "offset", 0)
    dtype = dtype_of(facts, "y")

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        x32, w = wide(x, weight)
        y = normalized(x32, eps)
        return give(y if w is None else y * (offset + w), dtype, out)

    return Prepared(run, refresh=in_place(weights))
