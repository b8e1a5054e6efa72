"""``reference.modulation``."""

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
        x: torch.Tensor,
        scale: torch.Tensor,
        shift: torch.Tensor | None = None,
        gate: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        state: object = None,
    ) -> torch.Tensor:
        x32, *condition = wide(x, scale, shift, gate)
        factor, offset, gain = (None if c is None else c.reshape(-1, 1, c.shape[-1]) for c in condition)
        assert factor is not None
        y = by_group(x32, len(factor)) * (1 + factor)
        y = y if offset is None else y + offset
        y = y if gain is None else y * gain
        return give(y.reshape(x.shape), dtype, out)

    return Prepared(run)
