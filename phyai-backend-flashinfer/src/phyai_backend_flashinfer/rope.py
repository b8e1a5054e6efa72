"""``rope``: rotation by a table of cosines and sines, of copies of q and k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts, whole
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_flashinfer.memory import give, held, target


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    from flashinfer import apply_rope_with_cos_sin_cache_inplace

    kept = held(weights)
    cos_sin, head_dim = kept["cos_sin"], whole(facts, "shape.head_dim")
    neox = facts.get("attrs.style", "neox") == "neox"

    def run(
        q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor] | None = None, state: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        q_out, k_out = out if out is not None else (None, None)
        y_q, y_k = target(q_out, q).copy_(q), target(k_out, k).copy_(k)
        if positions.numel():
            flat = positions.reshape(-1).contiguous()
            rotated = (y.view(len(flat), -1) for y in (y_q, y_k))
            apply_rope_with_cos_sin_cache_inplace(flat, *rotated, head_dim, cos_sin, neox)
        return give(y_q, q_out), give(y_k, k_out)

    return Prepared(run, refresh=in_place(kept))
