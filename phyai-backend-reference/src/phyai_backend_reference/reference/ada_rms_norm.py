"""``reference.ada_rms_norm``: normalize, scale and shift by a condition, and hand on its gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_reference.numerics import attribute, by_group, dtype_of, give, wide
from phyai_backend_reference.reference.rms_norm import normalized


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    eps = attribute(facts, "eps", 1e-6)
    y_dtype, gate_dtype = dtype_of(facts, "y"), dtype_of(facts, "gate")

    def run(
        x: torch.Tensor,
        modulation: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor] | None = None,
        state: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y_out, gate_out = out or (None, None)
        gate = modulation.chunk(3, dim=-1)[2]
        x32, condition = wide(x, modulation)
        scale, shift, _ = condition.reshape(-1, 1, condition.shape[-1]).chunk(3, dim=-1)
        y = normalized(by_group(x32, len(scale)), eps) * (1 + scale) + shift
        return give(y.reshape(x.shape), y_dtype, y_out), give(gate, gate_dtype, gate_out)

    return Prepared(run)
