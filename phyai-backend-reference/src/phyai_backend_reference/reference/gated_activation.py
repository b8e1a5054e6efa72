"""``reference.gated_activation``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_reference.numerics import attribute, dtype_of, give, wide
from phyai_backend_reference.reference.activation import FUNCTIONS


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    function = FUNCTIONS[attribute(facts, "activation", "silu")]
    dtype = dtype_of(facts, "y")

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        gate, up = wide(x).chunk(2, dim=-1)
        return give(function(gate) * up, dtype, out)

    return Prepared(run)
