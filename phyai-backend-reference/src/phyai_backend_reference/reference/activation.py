"""``reference.activation``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_reference.numerics import attribute, dtype_of, give, wide

FUNCTIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    function = FUNCTIONS[attribute(facts, "activation", "silu")]
    dtype = dtype_of(facts, "y")

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        return give(function(wide(x)), dtype, out)

    return Prepared(run)
