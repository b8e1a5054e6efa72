"""``torch.attention_paged.*``: SDPA's backends and variable-length flash attention, where a request has one page."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_reference.numerics import give
from phyai_backend_reference.torch_rows import sdpa


@frozen
class Batch:
    """Requests that one call serves: equal lengths, pages one after another."""

    first_row: int
    queries: int  # of each request
    first_page: int
    keys: int  # of each request
    requests: int


def plan(metadata: Mapping[str, torch.Tensor]) -> tuple[Batch, ...]:
    """The calls that serve all requests. Reads the metadata on the host, so it waits for the device."""
    rows, entries, pages, lengths = (
        metadata[name].tolist() for name in ("cu_seqlens_q", "kv_indptr", "kv_indices", "last_page_len")
    )
    batches: list[Batch] = []
    for request, keys in enumerate(lengths):
        alone = Batch(rows[request], rows[request + 1] - rows[request], pages[entries[request]], keys, 1)
        last = batches[-1] if batches else None
        if last and (last.queries, last.keys, last.first_page + last.requests) == (
            alone.queries,
            keys,
            alone.first_page,
        ):
            batches[-1] = Batch(last.first_row, last.queries, last.first_page, keys, last.requests + 1)
        else:
            batches.append(alone)
    return tuple(batches)


def _slabs(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, *, backend: sdpa.Backend
) -> Prepared:
    attend = sdpa.attention(backend, facts)

    def serve(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: Batch) -> torch.Tensor:
        rows = q[batch.first_row : batch.first_row + batch.requests * batch.queries]
        pages = slice(batch.first_page, batch.first_page + batch.requests)
        o = attend(
            rows.unflatten(0, (batch.requests, batch.queries)),
            k_cache[pages, : batch.keys],
            v_cache[pages, : batch.keys],
        )
        return o.reshape(rows.shape)

    def run(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        out: torch.Tensor | None = None,
        state: tuple[Batch, ...] = (),
    ) -> torch.Tensor:
        if len(state) == 1 and state[0].requests * state[0].queries == len(q):
            return give(serve(q, k_cache, v_cache, state[0]), q.dtype, out)
        o = torch.empty_like(q) if out is None else out
        end = 0
        for batch in state:
            rows = slice(batch.first_row, end := batch.first_row + batch.requests * batch.queries)
            o[rows] = serve(q, k_cache, v_cache, batch)
        o[end:].zero_()  # rows of no request
        return o

    return Prepared(run, plan=plan, plan_key="torch.attention_paged.slabs")


prepare_sdpa_flash = functools.partial(_slabs, backend=sdpa.flash)
prepare_sdpa_cudnn = functools.partial(_slabs, backend=sdpa.cudnn)
prepare_sdpa_efficient = functools.partial(_slabs, backend=sdpa.efficient)
prepare_sdpa_math = functools.partial(_slabs, backend=sdpa.math)


def prepare_varlen(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    attend = sdpa.varlen(facts)

    def run(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        out: torch.Tensor | None = None,
        state: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        assert state is not None, "attention_paged runs with the state that plan(metadata) returned"
        page_size, pad = k_cache.shape[1], torch.nn.functional.pad
        # rows of no request are one more, without keys: its results are the zeros that the op asks for
        rows, lengths = pad(state["cu_seqlens_q"], (0, 1), value=len(q)), pad(state["last_page_len"], (0, 1))
        starts = pad(state["kv_indices"][: len(lengths) - 1] * page_size, (0, 2))
        k, v = k_cache.flatten(0, 1), v_cache.flatten(0, 1)
        return give(attend(q, k, v, rows, starts, page_size, lengths), q.dtype, out)

    return Prepared(run, plan=dict, plan_key="torch.attention_paged.varlen")
