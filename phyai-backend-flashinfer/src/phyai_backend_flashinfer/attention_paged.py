"""``attention_paged``: FlashInfer's prefill over a paged cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from phyai.errors import CallError
from phyai.facts import Facts, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_flashinfer.memory import give, packed, readable, target
from phyai_backend_flashinfer.plans import WORKSPACE, Planner, Wrappers, scores

#: FlashInfer splits a request's keys at page boundaries alone: a request with one large page would keep one block busy.
#: A cache is therefore read as pages of at most this many keys.
SUBPAGE = 16


def split_pages(metadata: Mapping[str, torch.Tensor], page_size: int) -> tuple[int, dict[str, torch.Tensor]]:
    """``attention_paged``'s metadata for the same cache read as smaller pages, on the host, and their size.

    >>> def ints(*values): return torch.tensor(values, dtype=torch.int32)
    >>> size, small = split_pages({"cu_seqlens_q": ints(0, 5), "kv_indptr": ints(0, 2), "kv_indices": ints(3, 1),
    ...                            "last_page_len": ints(20)}, 48)
    >>> size, small["kv_indices"].tolist(), small["last_page_len"].tolist()
    (16, [9, 10, 11, 3, 4], [4])
    """
    size = math.gcd(page_size, SUBPAGE)
    factor = page_size // size
    host = {name: tensor.cpu() for name, tensor in metadata.items()}
    if factor == 1:
        return size, host
    pages, lengths = host["kv_indptr"].diff(), host["last_page_len"]
    keys = torch.where(pages > 0, (pages - 1) * page_size + lengths, 0)
    counts = -(-keys // size)
    every = (host["kv_indices"][:, None] * factor + torch.arange(factor, dtype=torch.int32)).flatten()
    starts = host["kv_indptr"][:-1] * factor
    kept = [every[start : start + count] for start, count in zip(starts.tolist(), counts.tolist(), strict=True)]
    host["kv_indices"] = torch.cat(kept) if kept else every[:0]
    host["kv_indptr"] = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
    host["last_page_len"] = torch.where(keys > 0, (keys - 1) % size + 1, 0).to(torch.int32)
    return size, host


class _Paged:
    """What is captured is planned for all T rows of q, so that its grid and buffers fit whatever lengths come later:
    rows of no request are planned as one more request, without keys, and give the zeros that the op asks for."""

    def __init__(self, backend: str, facts: Facts, resources: Resources) -> None:
        if facts.get("shape.T") is None:
            raise CallError(f"flashinfer.attention_paged.{backend} plans for all rows of q: give plan T=…")
        self.backend, self.resources, self.rows = backend, resources, whole(facts, "shape.T")
        self.pages, self.page_size = whole(facts, "shape.pages"), whole(facts, "shape.page_size")
        self.subpage = math.gcd(self.page_size, SUBPAGE)
        self.heads = tuple(whole(facts, f"shape.{name}") for name in ("heads", "kv_heads", "head_dim"))
        self.captured = bool(facts.get("mode.capture", True))
        self.scores = scores(facts)
        self.dtype = torch.bfloat16 if facts["dtype.q"] == "bf16" else torch.float16
        rest = (self.pages, self.page_size, *self.heads, self.dtype, self.captured, *sorted(self.scores.items()))
        self.kind = (f"flashinfer.attention_paged.{backend}", *rest)
        self.workspace = resources.workspace(f"flashinfer.{backend}", WORKSPACE)

    def _make(self, batch: int, entries: int) -> Planner:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        def buffer(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=self.workspace.device)

        buffers = {} if not self.captured else {
            "use_cuda_graph": True, "qo_indptr_buf": buffer(batch + 1), "paged_kv_indptr_buf": buffer(batch + 1),
            "paged_kv_indices_buf": buffer(max(1, entries)), "paged_kv_last_page_len_buf": buffer(batch),
        }  # fmt: skip
        wrapper = BatchPrefillWithPagedKVCacheWrapper(self.workspace, "NHD", backend=self.backend, **buffers)
        return Planner(wrapper, self.workspace.device)

    def plan(self, metadata: Mapping[str, torch.Tensor]) -> Planner:
        """The planner of the wrapper that ``run`` calls. Reads the metadata on the host: give host tensors where
        waiting for the device matters."""
        subpage, small = split_pages(metadata, self.page_size)
        rows, pages = small["cu_seqlens_q"], small["kv_indptr"]
        rows = torch.cat([rows, rows.new_tensor([self.rows])])
        pages, last = torch.cat([pages, pages[-1:]]), torch.nn.functional.pad(small["last_page_len"], (0, 1))
        # requests may share a page: there are as many entries as they refer to, however many pages the cache has
        batch, entries = len(last), len(metadata["kv_indices"]) * (self.page_size // subpage)
        size = (self.rows, batch, entries) if self.captured else ()
        wrappers = self.resources.shared((*self.kind, *size), lambda: Wrappers(lambda: self._make(batch, entries)))
        planner: Planner = wrappers.of(metadata["last_page_len"])
        if self.rows:
            heads, kv_heads, head_dim = self.heads
            planner.plan(
                rows, pages, small["kv_indices"], last, heads, kv_heads, head_dim, subpage,
                q_data_type=self.dtype, kv_data_type=self.dtype, **self.scores,
            )  # fmt: skip
        return planner

    def run(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, out: torch.Tensor | None = None,
        state: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        assert state is not None, "attention_paged runs with the state that plan(metadata) returned"
        o = target(out, q)
        if len(q):
            caches = tuple(packed(cache).view(-1, self.subpage, *cache.shape[2:]) for cache in (k_cache, v_cache))
            state.run(readable(q), caches, out=o)
        return give(o, out)

    def prepared(self) -> Prepared:
        return Prepared(self.run, plan=self.plan, plan_key=(*self.kind, self.rows))


def prepare_fa2(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    return _Paged("fa2", facts, resources).prepared()


def prepare_fa3(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    return _Paged("fa3", facts, resources).prepared()
