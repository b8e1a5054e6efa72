"""``torch.mlp.addmm_activation``: two products, the activation in the first one's epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.torch_rows.gemm import linear


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    fc1, fc1_bias, fc2, fc2_bias = weights["fc1"], weights["fc1_bias"], weights["fc2"], weights.get("fc2_bias")
    first = torch._addmm_activation  # a torch without it fails here, and another kernel is taken

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        hidden = first(fc1_bias, x.reshape(-1, x.shape[-1]), fc1.T, use_gelu=True)
        return linear(hidden.view(*x.shape[:-1], len(fc1)), fc2, fc2_bias, out)

    return Prepared(run, refresh=in_place(weights))
