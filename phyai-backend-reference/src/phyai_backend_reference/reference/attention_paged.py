"""``reference.attention_paged``: every request's pages in one masked attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_reference.numerics import attribute, dtype_of, give
from phyai_backend_reference.reference.attention import attend
from phyai_backend_reference.reference.masks import segment, segmented


def plan(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata tensors themselves: every run reads them, so that a captured graph sees new values in them."""
    return metadata


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    causal, window = attribute(facts, "causal", False), attribute(facts, "window", None)
    scale = attribute(facts, "scale", None)
    soft_cap = attribute(facts, "soft_cap", None)
    dtype = dtype_of(facts, "o")

    def run(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        out: torch.Tensor | None = None,
        state: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        assert state is not None, "attention_paged runs with the state that plan(metadata) returned"
        page_size = k_cache.shape[1]
        kv_indptr, kv_indices = state["kv_indptr"], state["kv_indices"]
        pages = kv_indptr.diff()
        lengths = torch.where(pages > 0, (pages - 1) * page_size + state["last_page_len"], 0)

        entry_of, entry_index = segment(kv_indptr, len(kv_indices))
        key_of = entry_of.repeat_interleave(page_size)
        key_index = (entry_index[:, None] * page_size + torch.arange(page_size, device=q.device)).flatten()
        query = segment(state["cu_seqlens_q"], len(q))
        keep = segmented(query, (key_of, key_index), state["cu_seqlens_q"].diff(), lengths, causal, window)

        page = torch.where(entry_of < len(pages), kv_indices, 0)  # entries of no request may hold anything
        unused = ~keep.any(dim=0)[:, None, None]  # and so may rows of the cache that nobody has written
        k, v = (cache[page].flatten(0, 1).masked_fill(unused, 0) for cache in (k_cache, v_cache))
        o = attend(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), keep, scale, soft_cap)
        return give(o.transpose(0, 1), dtype, out)

    return Prepared(run, plan=plan, plan_key="reference.attention_paged")
