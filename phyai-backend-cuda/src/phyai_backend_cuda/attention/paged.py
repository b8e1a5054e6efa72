"""What kernels of ``attention_paged`` that read lengths on the device share: metadata, tiles of rows, and a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import torch
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.runtime.memory import gapless, output, settle

PLAN_KEY = "cuda.attention_paged.metadata"
METADATA = ("cu_seqlens_q", "kv_indptr", "kv_indices", "last_page_len")


@attrs.frozen
class Metadata:
    """The four metadata tensors, int32 on the device: the caller's own, or copies that every plan writes anew."""

    tensors: tuple[torch.Tensor, ...]

    @property
    def requests(self) -> int:
        return len(self.tensors[3])


def tiles_of(tokens: int, requests: int, group: int, rows: int) -> int:
    """At most how many tiles of ``rows`` (queries × heads of one key head) the requests have, whatever their lengths.

    >>> tiles_of(50, 1, 8, 64), tiles_of(100, 2, 8, 64), tiles_of(1, 100, 8, 64), tiles_of(968, 1, 8, 128)
    (7, 14, 1, 61)
    """
    return (tokens * group + min(requests, tokens) * (rows - 1)) // rows


def on_device(t: torch.Tensor) -> bool:
    """Whether the kernel can read it where it is."""
    return t.is_cuda


def planner(resources: Resources) -> Callable[[Mapping[str, torch.Tensor]], Metadata]:
    """``plan`` of a kernel that reads the metadata on the device: nothing of theirs is fixed."""

    def plan(metadata: Mapping[str, torch.Tensor]) -> Metadata:
        given = [metadata[name] for name in METADATA]
        if all(on_device(t) and t.is_contiguous() for t in given):
            return Metadata(tuple(given))
        key = (PLAN_KEY, *((t.data_ptr(), t.numel()) for t in given))

        def make() -> Metadata:
            return Metadata(tuple(torch.empty(t.shape, dtype=torch.int32, device="cuda") for t in given))

        held: Metadata = resources.shared(key, make)
        for own, t in zip(held.tensors, given, strict=True):
            own.copy_(t)
        return held

    return plan


def prepared(
    launch: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Metadata], None], resources: Resources
) -> Prepared:
    """``launch(q, k_cache, v_cache, o, metadata)`` of some rows, into an ``o`` without gaps; none have results of 0."""

    def run(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, out: torch.Tensor | None = None,
        state: Metadata | None = None,
    ) -> torch.Tensor:  # fmt: skip
        assert state is not None, "attention_paged runs with the state that plan(metadata) returned"
        y = output(q, out)
        o = gapless(y)
        if not state.requests:
            o.zero_()
        elif len(q):
            launch(q, k_cache, v_cache, o, state)
        settle(y, o)
        return y

    return Prepared(run, plan=planner(resources), plan_key=PLAN_KEY)
