"""``reference.causal_conv``: a depthwise convolution that looks back only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, dtype_of, give, wide


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight, bias = weights["weight"], weights.get("bias")
    silu = attribute(facts, "activation", None) == "silu"
    dtype = dtype_of(facts, "y")

    def run(
        x: torch.Tensor, conv_state: torch.Tensor | None = None, out: torch.Tensor | None = None, state: object = None
    ) -> torch.Tensor:
        steps, width = x.shape[-1], weight.shape[-1]
        past = x.new_zeros(*x.shape[:-1], width - 1) if conv_state is None else conv_state
        x32, past, w, b = wide(x, past, weight, bias)
        full = torch.cat((past, x32), dim=-1)
        y = sum(full[..., i : i + steps] * w[:, i, None] for i in range(width))
        y = y if b is None else y + b[:, None]
        if conv_state is not None:
            conv_state.copy_(full[..., steps:])
        return give(F.silu(y) if silu else y, dtype, out)

    return Prepared(run, refresh=in_place(weights))
