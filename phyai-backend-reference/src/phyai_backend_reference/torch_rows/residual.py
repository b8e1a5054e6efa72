"""``torch.gated_residual``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_reference.numerics import by_group, give


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    def run(
        residual: torch.Tensor,
        x: torch.Tensor,
        gate: torch.Tensor,
        out: torch.Tensor | None = None,
        state: object = None,
    ) -> torch.Tensor:
        factor = gate.reshape(-1, 1, gate.shape[-1])
        y = torch.addcmul(by_group(residual, len(factor)), by_group(x, len(factor)), factor)
        return give(y.reshape(residual.shape), residual.dtype, out)

    return Prepared(run)
