"""``torch.kv_write``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources


def write(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
    """``rows`` into the slots of a cache, through a view of its pages as one."""
    if cache.stride(0) == cache.shape[1] * cache.stride(1):
        cache.flatten(0, 1).index_copy_(0, slots, rows)
    else:  # its pages do not lie one after another
        cache[slots // cache.shape[1], slots % cache.shape[1]] = rows


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
        write(k_cache, k, slots)
        write(v_cache, v, slots)

    return Prepared(run)
