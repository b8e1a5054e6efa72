"""``attention_paged`` and ``attention``: FlashInfer's prefill kernels."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from phyai.errors import CallError
from phyai.facts import Facts, number, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_flashinfer.memory import give, packed, readable, target

#: What FlashInfer asks for: split-KV partial results of a whole batch.
WORKSPACE = 128 << 20

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


def _scores(facts: Facts) -> dict[str, Any]:
    """The keyword arguments of both ``plan`` and ``single_prefill`` that describe the scores."""
    soft_cap, scale = (
        number(facts, f"attrs.{name}") if f"attrs.{name}" in facts else None for name in ("soft_cap", "scale")
    )
    return {
        "causal": bool(facts.get("attrs.causal", False)),
        "window_left": whole(facts, "attrs.window", 0) - 1,  # ours counts the query's own key
        "logits_soft_cap": soft_cap,
        "sm_scale": scale,
    }


class Wrappers:
    """FlashInfer wrappers of one kind. Each belongs to one set of metadata tensors while those live: a captured graph
    holds the buffers of the wrapper that planned for it, so what else is planned meanwhile (a suffix beside its prefix,
    a graph of another size) must not write there, and what is planned for the same tensors again must."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._held: list[tuple[weakref.ref[torch.Tensor], Any]] = []

    def of(self, owner: torch.Tensor) -> Any:
        """The wrapper of ``owner``; a new owner takes one over whose own is gone, before another is made."""
        free = None
        for place, (held, wrapper) in enumerate(self._held):
            if held() is owner:
                return wrapper
            if held() is None:
                free = place
        if free is None:
            self._held.append((weakref.ref(owner), self._make()))
            return self._held[-1][1]
        self._held[free] = (weakref.ref(owner), self._held[free][1])
        return self._held[free][1]


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
        self.scores = _scores(facts)
        self.dtype = torch.bfloat16 if facts["dtype.q"] == "bf16" else torch.float16
        rest = (self.pages, self.page_size, *self.heads, self.dtype, self.captured, *sorted(self.scores.items()))
        self.kind = (f"flashinfer.attention_paged.{backend}", *rest)
        self.workspace = resources.workspace(f"flashinfer.{backend}", WORKSPACE)

    def _make(self, batch: int, entries: int) -> Any:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        def buffer(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=self.workspace.device)

        if not self.captured:
            return BatchPrefillWithPagedKVCacheWrapper(self.workspace, "NHD", backend=self.backend)
        return BatchPrefillWithPagedKVCacheWrapper(
            self.workspace, "NHD", use_cuda_graph=True, backend=self.backend, qo_indptr_buf=buffer(batch + 1),
            paged_kv_indptr_buf=buffer(batch + 1), paged_kv_indices_buf=buffer(max(1, entries)),
            paged_kv_last_page_len_buf=buffer(batch),
        )  # fmt: skip

    def plan(self, metadata: Mapping[str, torch.Tensor]) -> Any:
        """The wrapper that ``run`` calls. Reads the metadata on the host: give host tensors where waiting for the
        device matters."""
        subpage, small = split_pages(metadata, self.page_size)
        rows, pages = small["cu_seqlens_q"], small["kv_indptr"]
        rows = torch.cat([rows, rows.new_tensor([self.rows])])
        pages, last = torch.cat([pages, pages[-1:]]), torch.nn.functional.pad(small["last_page_len"], (0, 1))
        # requests may share a page: there are as many entries as they refer to, however many pages the cache has
        batch, entries = len(last), len(metadata["kv_indices"]) * (self.page_size // subpage)
        size = (self.rows, batch, entries) if self.captured else ()
        wrappers = self.resources.shared((*self.kind, *size), lambda: Wrappers(lambda: self._make(batch, entries)))
        wrapper = wrappers.of(metadata["last_page_len"])
        if self.rows:
            heads, kv_heads, head_dim = self.heads
            wrapper.plan(
                rows, pages, small["kv_indices"], last, heads, kv_heads, head_dim, subpage,
                q_data_type=self.dtype, kv_data_type=self.dtype, **self.scores,
            )  # fmt: skip
        return wrapper

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


def _single(backend: str, facts: Facts) -> Prepared:
    from flashinfer import single_prefill_with_kv_cache

    call: Callable[..., torch.Tensor] = single_prefill_with_kv_cache
    scores = _scores(facts)

    def run(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: None = None, cu_seqlens_q: None = None,
        cu_seqlens_k: None = None, out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        queries, keys, values = (readable(t.flatten(0, -3)) for t in (q, k, v))
        # The last query stands at the last key. The library refuses queries in front of the first one, which see none.
        blind = max(0, len(queries) - len(keys)) if scores["causal"] else 0
        o = call(queries[blind:], keys, values, backend=backend, **scores)
        return give(torch.nn.functional.pad(o, (0, 0, 0, 0, blind, 0)).view(q.shape), out)

    return Prepared(run)


def prepare_single_fa2(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    return _single("fa2", facts)


def prepare_single_fa3(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    return _single("fa3", facts)
