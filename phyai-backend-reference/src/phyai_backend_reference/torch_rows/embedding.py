"""``torch.embedding``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_reference.numerics import give, in_place


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight = weights["weight"]

    def run(ids: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        return give(F.embedding(ids, weight), weight.dtype, out)

    return Prepared(run, refresh=in_place(weights))
