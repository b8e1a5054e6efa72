"""``reference.group_norm``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, dtype_of, give, wide
from phyai_backend_reference.reference.layer_norm import standardized


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight, bias = weights.get("weight"), weights.get("bias")
    groups, eps = attribute(facts, "groups", 1), attribute(facts, "eps", 1e-5)
    dtype = dtype_of(facts, "y")

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        batch, channels, *positions = x.shape
        x32, w, b = wide(x, weight, bias)
        size = x[0].numel() // groups if batch else 0
        y = standardized(x32.reshape(batch, groups, size), eps).reshape(batch, channels, -1 if x.numel() else 0)
        y = y if w is None else y * w[:, None]
        y = y if b is None else y + b[:, None]
        return give(y.reshape(batch, channels, *positions), dtype, out)

    return Prepared(run, refresh=in_place(weights))
