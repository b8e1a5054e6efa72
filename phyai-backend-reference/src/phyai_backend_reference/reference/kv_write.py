"""``reference.kv_write``: rows into the slots of a paged cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    def run(
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        out: None = None,
        state: object = None,
    ) -> None:
        page_size = k_cache.shape[1]
        page, offset = slots // page_size, slots % page_size
        k_cache[page, offset] = k.to(k_cache.dtype)
        v_cache[page, offset] = v.to(v_cache.dtype)

    return Prepared(run)
