"""``kv_write``: the cache as one request whose pages lie one after another, so that a slot is a position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_flashinfer.memory import fits, give, packed, readable


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    from flashinfer import append_paged_kv_cache

    def request(pages: int, page_size: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        """``kv_indices``, ``kv_indptr`` and ``kv_last_page_len`` of that request."""

        def make() -> tuple[torch.Tensor, ...]:
            every = torch.arange(pages, dtype=torch.int32, device=device)
            return every, every.new_tensor([0, pages]), every.new_tensor([page_size])

        shared: tuple[torch.Tensor, ...] = resources.shared(("flashinfer.kv_write", pages, page_size), make)
        return shared

    def run(
        k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor,
        out: None = None, state: object = None,
    ) -> None:  # fmt: skip
        if not len(slots):
            return
        # the library reads both caches by the strides of the first
        alike = k_cache.stride() == v_cache.stride() and fits(k_cache) and fits(v_cache)
        caches = (k_cache, v_cache) if alike else (packed(k_cache), packed(v_cache))
        pages, page_size = k_cache.shape[:2]
        positions = slots.to(torch.int32)
        append_paged_kv_cache(
            readable(k), readable(v), torch.zeros_like(positions), positions, caches,
            *request(pages, page_size, k_cache.device),
        )  # fmt: skip
        for written, cache in zip(caches, (k_cache, v_cache), strict=True):
            give(written, cache)

    return Prepared(run)
