"""``reference.channel_l2_norm``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, dtype_of, give, wide


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight, bias = weights["weight"], weights.get("bias")
    eps = attribute(facts, "eps", 1e-12)
    dtype = dtype_of(facts, "y")

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        x32, w, b = wide(x, weight, bias)
        channels = x.shape[1]
        per_channel = (channels, *(1 for _ in x.shape[2:]))
        y = x32 / torch.linalg.vector_norm(x32, dim=1, keepdim=True).clamp_min(eps)
        y = y * channels**0.5 * w.reshape(per_channel)
        return give(y if b is None else y + b.reshape(per_channel), dtype, out)

    return Prepared(run, refresh=in_place(weights))
