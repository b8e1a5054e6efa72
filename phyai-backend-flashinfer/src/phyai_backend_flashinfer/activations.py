"""``gated_activation``: the activated first half times the second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_flashinfer.memory import give, packed, target


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    import flashinfer

    name = {"silu": "silu_and_mul", "gelu": "gelu_and_mul", "gelu_tanh": "gelu_tanh_and_mul"}
    call = getattr(flashinfer, name[str(facts["attrs.activation"])])

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y = target(out, x[..., : x.shape[-1] // 2])
        if x.numel():
            call(packed(x), out=y)
        return give(y, out)

    return Prepared(run)
