"""``rms_norm`` and ``rms_norm_add``, plain and in Gemma's ``1 + w`` form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources


def in_place(weights: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], None]:
    """A ``refresh`` that copies new weights into those that were bound."""

    def refresh(new: Mapping[str, Any]) -> None:
        for name, held in weights.items():
            if held is not None:
                held.copy_(new[name])

    return refresh


def prepare_rms_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    from flashinfer import gemma_rmsnorm, rmsnorm

    call = gemma_rmsnorm if facts.get("attrs.offset", 0) else rmsnorm
    weight, eps = weights["weight"], float(facts.get("attrs.eps", 1e-6))

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
        if x.numel():
            call(x.reshape(-1, x.shape[-1]), weight, eps, out=y.view(-1, x.shape[-1]))
        return y

    return Prepared(run, refresh=in_place(weights))


def prepare_rms_norm_add(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    from flashinfer import fused_add_rmsnorm, gemma_fused_add_rmsnorm

    call = gemma_fused_add_rmsnorm if facts.get("attrs.offset", 0) else fused_add_rmsnorm
    weight, eps = weights["weight"], float(facts.get("attrs.eps", 1e-6))

    def run(
        x: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None = None, state: object = None
    ) -> torch.Tensor:
        # the library writes its result over x, which is the caller's
        y = x.clone(memory_format=torch.contiguous_format) if out is None else out.copy_(x)
        if x.numel():
            held = residual.contiguous()
            call(y.view(-1, x.shape[-1]), held.view(-1, x.shape[-1]), weight, eps)
            if held is not residual:
                residual.copy_(held)
        return y

    return Prepared(run, refresh=in_place(weights))
