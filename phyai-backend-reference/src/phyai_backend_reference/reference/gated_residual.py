"""``reference.gated_residual``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_reference.numerics import by_group, dtype_of, give, wide


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    dtype = dtype_of(facts, "y")

    def run(
        residual: torch.Tensor,
        x: torch.Tensor,
        gate: torch.Tensor,
        out: torch.Tensor | None = None,
        state: object = None,
    ) -> torch.Tensor:
        r32, x32, g32 = wide(residual, x, gate)
        g32 = g32.reshape(-1, 1, g32.shape[-1])
        y = by_group(r32, len(g32)) + by_group(x32, len(g32)) * g32
        return give(y.reshape(residual.shape), dtype, out)

    return Prepared(run)
