"""``reference.quantize_activation``: symmetric 8-bit codes and their scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_reference.numerics import DTYPES, attribute, give, wide

#: The largest code of every format.
TOP: Mapping[str, float] = {"int8": 127.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    name = attribute(facts, "format", "fp8_e4m3")
    granularity = attribute(facts, "granularity", "token")
    group_size = attribute(facts, "group_size", 1)
    top = TOP[name]

    def dynamic(x: torch.Tensor) -> torch.Tensor:
        """One scale per slice of x that shares one; 1 where it would be 0."""
        if granularity == "tensor":
            amax = x.abs().amax() if x.numel() else x.new_zeros(())
        else:
            amax = x.abs().amax(dim=-1, keepdim=True)
        return torch.where(amax / top == 0, 1, amax / top)

    def run(
        x: torch.Tensor,
        scale: torch.Tensor | None = None,
        out: tuple[torch.Tensor, torch.Tensor] | None = None,
        state: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        codes_out, scales_out = out or (None, None)
        x32 = wide(x)
        groups = x.shape[-1] // group_size if granularity == "group" else 1
        if granularity == "group":
            x32 = x32.unflatten(-1, (groups, group_size))
        scales = (dynamic(x32) if scale is None else scale).float()
        codes = (x32 / scales).clamp(-top, top)
        codes = codes.round() if name == "int8" else codes
        scales = scales.reshape(1) if granularity == "tensor" else scales.reshape(*x.shape[:-1], groups)
        return give(codes.reshape(x.shape), DTYPES[name], codes_out), give(scales, torch.float32, scales_out)

    return Prepared(run)
