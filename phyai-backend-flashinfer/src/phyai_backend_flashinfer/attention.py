"""``attention``: FlashInfer's prefill over given keys, of one sequence and of several."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, PrepareFn, Resources

from phyai_backend_flashinfer.memory import give, readable, target
from phyai_backend_flashinfer.plans import WORKSPACE, Planner, scores


def _single(
    backend: str, facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:  # fmt: skip
    from flashinfer import single_prefill_with_kv_cache

    call: Callable[..., torch.Tensor] = single_prefill_with_kv_cache
    described = scores(facts)

    def run(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, cu_seqlens_q: None = None,
        cu_seqlens_k: None = None, out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        queries, keys, values = (readable(t.flatten(0, -3)) for t in (q, k, v))
        if mask is not None:
            if described["causal"]:  # which the library leaves to the mask
                mask = mask.tril(len(keys) - len(queries))
            o = call(queries, keys, values, custom_mask=mask[0], backend=backend, **described)
            return give(o.view(q.shape), out)
        # The last query stands at the last key. The library refuses queries in front of the first one, which see none.
        blind = max(0, len(queries) - len(keys)) if described["causal"] else 0
        o = call(queries[blind:], keys, values, backend=backend, **described)
        return give(torch.nn.functional.pad(o, (0, 0, 0, 0, blind, 0)).view(q.shape), out)

    return Prepared(run)


def sequences(
    starts_q: torch.Tensor, starts_k: torch.Tensor, rows: int, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The boundaries that FlashInfer gets, for sequences with those of the op and so many ``rows`` of q.

    Queries in front of their sequence's first key, which see none, and rows of no sequence are sequences of their own,
    without keys: their results are the zeros that the op asks for.

    >>> def ints(*values): return torch.tensor(values, dtype=torch.int32)
    >>> q, k = sequences(ints(0, 5, 7), ints(0, 2, 9), 8, causal=True)
    >>> q.tolist(), k.tolist()
    ([0, 3, 5, 5, 7, 8], [0, 0, 2, 2, 9, 9])
    """
    if causal:
        blind = (starts_q.diff() - starts_k.diff()).clamp(min=0)
        starts_q = torch.cat((torch.stack((starts_q[:-1], starts_q[:-1] + blind), 1).flatten(), starts_q[-1:]))
        starts_k = torch.cat((starts_k[:-1].repeat_interleave(2), starts_k[-1:]))
    return torch.cat((starts_q, starts_q.new_tensor([rows]))), torch.cat((starts_k, starts_k[-1:]))


class _Batch:
    """Sequences one after another, through a wrapper of FlashInfer's prefill over ragged keys.

    A plan that is captured belongs to its lengths alone: a graph holds the buffers of its wrapper.
    """

    def __init__(self, backend: str, facts: Facts, resources: Resources) -> None:
        self.backend, self.resources = backend, resources
        self.captured = bool(facts.get("mode.capture", True))
        self.scores = scores(facts)
        self.workspace = resources.workspace(f"flashinfer.{backend}", WORKSPACE)

    def planner(self, q: torch.Tensor, k: torch.Tensor, kind: tuple[object, ...]) -> Planner:
        """The planner of calls like this one; those of another ``kind`` have their own."""
        described = (*q.shape[-2:], k.shape[-2], q.dtype, *sorted(self.scores.items()))
        key = (f"flashinfer.attention.{self.backend}", *described, *kind)
        planner: Planner = self.resources.shared(key, self._make)
        return planner

    def _make(self) -> Planner:
        from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

        wrapper = BatchPrefillWithRaggedKVCacheWrapper(self.workspace, "NHD", backend=self.backend)
        return Planner(wrapper, self.workspace.device)

    def plan(
        self, planner: Planner, q: torch.Tensor, k: torch.Tensor, starts_q: torch.Tensor, starts_k: torch.Tensor
    ) -> None:
        """Plan for these boundaries, which lie on the host."""
        rows = math.prod(q.shape[:-2])
        planner.plan(
            *sequences(starts_q, starts_k, rows, causal=self.scores["causal"]), q.shape[-2], k.shape[-2], q.shape[-1],
            q_data_type=q.dtype, kv_data_type=q.dtype, **self.scores,
        )  # fmt: skip

    def run(
        self, planner: Planner, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor | None
    ) -> torch.Tensor:
        o = target(out, q)
        tokens = (readable(t.reshape(-1, *t.shape[-2:])) for t in (q, k, v))
        planner.run(*tokens, out=o.view(-1, *q.shape[-2:]))
        return give(o, out)


def _padded(
    backend: str, facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:  # fmt: skip
    batch = _Batch(backend, facts, resources)

    def run(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: None = None, cu_seqlens_q: None = None,
        cu_seqlens_k: None = None, out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        lengths = (math.prod(q.shape[:-3]), q.shape[-3], k.shape[-3])
        planner = batch.planner(q, k, lengths if batch.captured else ("padded",))
        if planner.planned != lengths:
            count, queries, keys = lengths
            starts = torch.arange(count + 1, dtype=torch.int32)
            batch.plan(planner, q, k, starts * queries, starts * keys)
            planner.planned = lengths
        return batch.run(planner, q, k, v, out)

    return Prepared(run)


def _ragged(
    backend: str, facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:  # fmt: skip
    batch = _Batch(backend, facts, resources)

    def run(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: None, cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor, out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        planner = batch.planner(q, k, ("ragged",))
        batch.plan(planner, q, k, cu_seqlens_q.cpu(), cu_seqlens_k.cpu())
        return batch.run(planner, q, k, v, out)

    return Prepared(run)


prepare_single_fa2: PrepareFn = functools.partial(_single, "fa2")
prepare_single_fa3: PrepareFn = functools.partial(_single, "fa3")
prepare_padded_fa2: PrepareFn = functools.partial(_padded, "fa2")
prepare_padded_fa3: PrepareFn = functools.partial(_padded, "fa3")
prepare_ragged_fa2: PrepareFn = functools.partial(_ragged, "fa2")
prepare_ragged_fa3: PrepareFn = functools.partial(_ragged, "fa3")
