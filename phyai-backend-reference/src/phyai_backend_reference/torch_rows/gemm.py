"""``torch.gemm.*``: a linear layer in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.T + bias``, straight into ``out`` where that has no gaps."""
    if out is None:
        return F.linear(x, weight, bias)
    if not out.is_contiguous():
        return out.copy_(F.linear(x, weight, bias))
    rows, flat = x.reshape(-1, x.shape[-1]), out.view(-1, out.shape[-1])
    if bias is None:
        torch.mm(rows, weight.T, out=flat)
    else:
        torch.addmm(bias, rows, weight.T, out=flat)
    return out


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight, bias = weights["weight"], weights.get("bias")
    # oneDNN's bf16 product reads past rows whose length is no multiple of 4, and a NaN there spoils the result
    whole_rows = facts["device.type"] == "cpu" and facts["dtype.x"] == "bf16" and weight.shape[1] % 4 != 0

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        if whole_rows:
            x = x.contiguous()
        return linear(x, weight, bias, out)

    return Prepared(run, refresh=in_place(weights))
