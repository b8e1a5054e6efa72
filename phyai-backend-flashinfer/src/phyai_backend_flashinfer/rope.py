"""``rope``: rotation by a table of cosines and sines, of copies of q and k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_flashinfer.norms import in_place


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    from flashinfer import apply_rope_with_cos_sin_cache_inplace

    cos_sin, head_dim = weights["cos_sin"], int(facts["shape.head_dim"])
    neox = facts.get("attrs.style", "neox") == "neox"

    def run(
        q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor] | None = None, state: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        if out is None:
            out = (q.clone(memory_format=torch.contiguous_format), k.clone(memory_format=torch.contiguous_format))
        else:
            out[0].copy_(q)
            out[1].copy_(k)
        if positions.numel():
            rows = positions.numel()
            apply_rope_with_cos_sin_cache_inplace(
                positions.reshape(-1), out[0].view(rows, -1), out[1].view(rows, -1), head_dim, cos_sin, neox
            )
        return out

    return Prepared(run, refresh=in_place(weights))
