"""``torch.embedding``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, give


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight, scale = weights["weight"], attribute(facts, "scale", None)

    def run(ids: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        rows = F.embedding(ids, weight)
        if scale is None:
            return give(rows, weight.dtype, out)
        return torch.mul(rows, scale, out=rows if out is None else out)

    return Prepared(run, refresh=in_place(weights))
