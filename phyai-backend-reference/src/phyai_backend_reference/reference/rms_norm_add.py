"""``reference.rms_norm_add``: add to the residual in place, then normalize it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, dtype_of, give, wide
from phyai_backend_reference.reference.rms_norm import normalized


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight = weights["weight"]
    eps, offset = attribute(facts, "eps", 1e-6), attribute(facts, "offset", 0)
    dtype = dtype_of(facts, "y")

    def run(
        x: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None = None, state: object = None
    ) -> torch.Tensor:
        x32, r32 = wide(x, residual)
        residual.copy_(r32 + x32)
        r32, w = wide(residual, weight)
        return give(normalized(r32, eps) * (offset + w), dtype, out)

    return Prepared(run, refresh=in_place(weights))
