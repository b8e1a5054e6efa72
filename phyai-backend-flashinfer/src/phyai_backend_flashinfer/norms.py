"""``rms_norm`` and ``rms_norm_add``, plain and in Gemma's ``1 + w`` form, and ``layer_norm``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts, number
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_flashinfer.memory import give, held, packed, readable, target


def prepare_rms_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    from flashinfer import gemma_rmsnorm, rmsnorm

    call = gemma_rmsnorm if facts.get("attrs.offset", 0) else rmsnorm
    kept = held(weights)
    weight, eps = kept["weight"], number(facts, "attrs.eps", 1e-6)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y = target(out, x)
        if x.numel():
            call(readable(x.reshape(-1, x.shape[-1])), weight, eps, out=y.view(-1, x.shape[-1]))
        return give(y, out)

    return Prepared(run, refresh=in_place(kept))


def prepare_rms_norm_add(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    from flashinfer import fused_add_rmsnorm, gemma_fused_add_rmsnorm

    call = gemma_fused_add_rmsnorm if facts.get("attrs.offset", 0) else fused_add_rmsnorm
    kept = held(weights)
    weight, eps = kept["weight"], number(facts, "attrs.eps", 1e-6)

    def run(
        x: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None = None, state: object = None
    ) -> torch.Tensor:
        y = target(out, x).copy_(x)  # the library writes its result over x, which is the caller's
        if x.numel():
            total = packed(residual)
            call(y.view(-1, x.shape[-1]), total.view(-1, x.shape[-1]), weight, eps)
            give(total, residual)
        return give(y, out)

    return Prepared(run, refresh=in_place(kept))


def prepare_layer_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    from flashinfer.norm import layernorm

    # float32 is what the library asks for
    kept: dict[str, Any] = {
        name: None if w is None else w.to(torch.float32, copy=True).contiguous() for name, w in weights.items()
    }
    weight, bias, eps = kept["weight"], kept.get("bias"), number(facts, "attrs.eps", 1e-5)
    beta = torch.zeros_like(weight) if bias is None else bias

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        if not x.numel():
            return target(out, x)
        y = layernorm(x.reshape(-1, x.shape[-1]).contiguous(), weight, beta, eps)
        return give(y.view(x.shape), out)

    return Prepared(run, refresh=in_place(kept))
