"""``torch.activation.*`` and ``torch.gated_activation.*``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_reference.numerics import attribute, give
from phyai_backend_reference.reference.activation import FUNCTIONS


def prepare_activation(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    function = FUNCTIONS[attribute(facts, "activation", "silu")]

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        return give(function(x), x.dtype, out)

    return Prepared(run)


def prepare_gated_activation(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    function = FUNCTIONS[attribute(facts, "activation", "silu")]

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return torch.mul(function(gate), up, out=out)

    return Prepared(run)
