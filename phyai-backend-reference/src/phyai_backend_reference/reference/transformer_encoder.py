"""``reference.transformer_encoder``: all layers, in fp32 (fp64 for fp64) from end to end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, dtype_of, give, size
from phyai_backend_reference.reference.activation import FUNCTIONS
from phyai_backend_reference.reference.attention import attend


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    heads, eps = attribute(facts, "heads", 1), attribute(facts, "eps", 1e-5)
    activation, dtype = FUNCTIONS[attribute(facts, "activation", "silu")], dtype_of(facts, "y")
    layers = size(facts, "layers")

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        dtypes = {t.dtype for t in (x, *weights.values())}
        h = x.to(torch.float64 if torch.float64 in dtypes else torch.float32)

        def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return F.layer_norm(x, x.shape[-1:], weight.to(x.dtype), bias.to(x.dtype), eps)

        def product(x: torch.Tensor, name: str, layer: int) -> torch.Tensor:
            return F.linear(x, *(weights[of][layer].to(x.dtype) for of in (name, f"{name}_bias")))

        def mixed(x: torch.Tensor, layer: int) -> torch.Tensor:
            q, k, v = product(x, "qkv", layer).unflatten(-1, (3, heads, -1)).unbind(-3)
            q, k, v = (t.transpose(-3, -2) for t in (q, k, v))
            o = attend(q, k, v, None, None, None)
            return product(o.transpose(-3, -2).flatten(-2), "o", layer)

        for i in range(layers if x.numel() else 0):
            h = h + mixed(norm(h, weights["norm1_weight"][i], weights["norm1_bias"][i]), i)
            y = norm(h, weights["norm2_weight"][i], weights["norm2_bias"][i])
            h = h + product(activation(product(y, "fc1", i)), "fc2", i)
        return give(norm(h, weights["norm_weight"], weights["norm_bias"]), dtype, out)

    return Prepared(run, refresh=in_place(weights))
