"""``reference.embedding``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, dtype_of, give, wide


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight = weights["weight"]
    start = attribute(facts, "start", 0)
    end = attribute(facts, "end", start + weight.shape[0])
    scale = attribute(facts, "scale", None)
    dtype = dtype_of(facts, "y")

    def run(ids: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        inside = (ids >= start) & (ids < end)
        rows = wide(weight[torch.where(inside, ids - start, 0).long()])
        y = torch.where(inside[..., None], rows, 0)
        return give(y if scale is None else y * scale, dtype, out)

    return Prepared(run, refresh=in_place(weights))
