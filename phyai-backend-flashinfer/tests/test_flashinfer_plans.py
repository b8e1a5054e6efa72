"""Plans of FlashInfer's paged attention and the wrappers that they keep, with a stand-in for the library on a CPU.

The stand-in holds what matters of ``BatchPrefillWithPagedKVCacheWrapper`` in CUDA-graph mode: buffers that are given
and written in place, a batch that never changes, and as many rows at most as the first plan had.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from phyai.errors import CallError
from phyai.facts import Facts
from phyai.kernel import Prepared
from phyai_backend_flashinfer.rows import KERNELS

FACTS = {
    "shape.T": 6, "shape.heads": 2, "shape.kv_heads": 1, "shape.head_dim": 64, "shape.pages": 3, "shape.page_size": 32,
    "dtype.q": "bf16", "attrs.causal": False, "mode.capture": True,
}  # fmt: skip


class Wrapper:
    """Attention of one group of heads, by the buffers at the time of the run."""

    made: list[Wrapper]

    def __init__(
        self, workspace: torch.Tensor, layout: str, *, backend: str, use_cuda_graph: bool = False, **buffers: Any
    ):
        self.fixed, self.most = use_cuda_graph, None
        self.buffers = list(buffers.values()) if use_cuda_graph else []
        Wrapper.made.append(self)

    def plan(
        self, rows: torch.Tensor, pages: torch.Tensor, indices: torch.Tensor, last: torch.Tensor, *sizes: int, **_: Any
    ):
        given, self.page_size = [rows, pages, indices, last], sizes[-1]
        if not self.fixed:
            self.buffers = [t.clone() for t in given]
            return
        self.most = self.most or int(rows[-1])
        if int(rows[-1]) > self.most:
            raise ValueError(f"{int(rows[-1])} rows exceed the number of rows set during initialization {self.most}")
        for buffer, value in zip(self.buffers, given, strict=True):
            if buffer is not self.buffers[2] and len(buffer) != len(value):
                raise ValueError("the batch size should be fixed during the lifecycle of the wrapper")
            if len(value) > len(buffer):
                raise ValueError("the length of paged_kv_indices exceeds the allocated buffer size")
            buffer[: len(value)].copy_(value)

    def run(self, q: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        rows, pages, indices, last = self.buffers
        for b in range(len(last)):
            mine = indices[pages[b] : pages[b + 1]].long()
            keys = (len(mine) - 1) * self.page_size + int(last[b]) if len(mine) else 0
            k, v = (cache[mine].flatten(0, 1)[:keys, 0].double() for cache in caches)
            own = slice(int(rows[b]), int(rows[b + 1]))
            out[own] = (torch.softmax(q[own].double() @ k.T * q.shape[-1] ** -0.5, -1) @ v).to(out.dtype)
        return out


class Resources:
    """What an engine lends, on a CPU."""

    def __init__(self) -> None:
        self.objects: dict[object, Any] = {}

    def workspace(self, key: str, nbytes: int) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.uint8)

    def shared(self, key: object, make: Callable[[], Any]) -> Any:
        return self.objects[key] if key in self.objects else self.objects.setdefault(key, make())


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Prepared]:
    """The row at a call site of one engine, with changes to :data:`FACTS`."""
    Wrapper.made = []
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Wrapper))
    resources = Resources()
    kernel = next(k for k in KERNELS if k.id == "flashinfer.attention_paged.fa2")

    def site(**changes: Any) -> Prepared:
        facts = {**FACTS, **{f"shape.{name}" if name == "T" else "mode.capture": v for name, v in changes.items()}}
        return kernel.load()(Facts(facts), {}, {}, resources)  # type: ignore[arg-type]

    return site


def metadata(*requests: tuple[int, int], pages: list[int] | None = None) -> dict[str, torch.Tensor]:
    """So many queries and keys of every request, which has a page of its own, or that of ``pages``."""
    queries = torch.tensor([0, *(q for q, _ in requests)])
    values = {
        "cu_seqlens_q": queries.cumsum(0), "kv_indptr": torch.arange(len(requests) + 1),
        "kv_indices": torch.tensor(pages or range(len(requests))),
        "last_page_len": torch.tensor([k for _, k in requests]),
    }  # fmt: skip
    return {name: value.to(torch.int32) for name, value in values.items()}


def write(into: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in into.items():
        tensor.copy_(values[name])


def check(prepared: Prepared, state: Any, *requests: tuple[int, int], pages: list[int] | None = None) -> None:
    """One run, held to attention request by request; rows of no request are zero."""
    rows = FACTS["shape.T"]
    g = torch.Generator().manual_seed(0)
    q = torch.randn(rows, 2, 64, generator=g).bfloat16()
    caches = [torch.randn(3, 32, 1, 64, generator=g).bfloat16() for _ in range(2)]
    o = prepared.run(q, *caches, out=torch.full_like(q, float("nan")), state=state)
    want, at = torch.zeros(rows, 2, 64, dtype=torch.float64), 0
    for page, (queries, keys) in zip(pages or range(len(requests)), requests, strict=False):
        k, v = (cache[page, :keys, 0].double() for cache in caches)
        want[at : at + queries] = torch.softmax(q[at : at + queries].double() @ k.T / 8, -1) @ v
        at += queries
    torch.testing.assert_close(o.double(), want, rtol=1e-2, atol=1e-2)


def test_lengths_alone_make_no_other_wrapper(prepare):
    prepared = prepare()
    state = prepared.plan(metadata((6, 20)))
    for lengths in ((6, 20), (2, 3), (6, 32), (1, 1)):
        assert prepared.plan(metadata(lengths)) is state
        check(prepared, state, lengths)
    assert len(Wrapper.made) == 1


def test_new_lengths_in_the_same_tensors_are_planned_where_the_first_ones_were(prepare):
    prepared, held, other = prepare(), metadata((4, 9)), metadata((6, 5))
    state, _ = prepared.plan(held), prepared.plan(other)
    write(held, metadata((5, 30)))
    assert prepared.plan(held) is state
    check(prepared, state, (5, 30))


def test_a_graph_recorded_with_few_rows_takes_more_of_them_later(prepare):
    """Its first request fills a bucket partly, a later one wholly, and the reverse."""
    prepared = prepare()
    for lengths in ((2, 7), (6, 31), (3, 8)):
        check(prepared, prepared.plan(metadata(lengths)), lengths)


def test_what_is_planned_for_other_tensors_meanwhile_leaves_a_plan_alone(prepare):
    """A prefix and its suffix, two graphs of one size, graphs of other batches and numbers of rows."""
    prepared, held = prepare(), metadata((4, 9))
    state = prepared.plan(held)
    others = [metadata((6, 5)), metadata((1, 1)), metadata((3, 4), (3, 2))]
    assert len({id(s) for s in (state, *(prepared.plan(other) for other in others))}) == 4
    longer = metadata((8, 9))
    assert prepare(T=8).plan(longer) is not state
    check(prepared, state, (4, 9))


def test_requests_may_share_pages(prepare):
    """The two segments of a suffix: more entries than the cache has pages."""
    prepared, requests, pages = prepare(), [(1, 32), (2, 31), (1, 30), (1, 32), (1, 29)], [0, 0, 2, 2, 1]
    check(prepared, prepared.plan(metadata(*requests, pages=pages)), *requests, pages=pages)


def test_graphs_that_are_gone_leave_their_wrappers_to_the_next(prepare):
    prepared = prepare()
    kept = metadata((4, 9))
    state = prepared.plan(kept)
    for keys in range(1, 20):
        program = metadata((6, keys))  # replaces the last one
        assert prepared.plan(program) is not state
    assert len(Wrapper.made) <= 3
    check(prepared, state, (4, 9))


def test_calls_outside_graphs_share_wrappers_whatever_their_size(prepare):
    for rows in range(1, 9):
        prepared = prepare(T=rows, captured=False)
        prefix, suffix = metadata((rows, 20)), metadata((rows, 30))
        assert prepared.plan(prefix) is not prepared.plan(suffix)
    assert len(Wrapper.made) <= 4
    check(prepare(captured=False), prepare(captured=False).plan(metadata((2, 3), (3, 9))), (2, 3), (3, 9))


def test_a_call_without_rows_or_requests_is_planned_too(prepare):
    prepared = prepare(T=0)
    q = torch.zeros(0, 2, 64)
    cache = torch.zeros(3, 32, 1, 64)
    assert prepared.run(q, cache, cache, state=prepared.plan(metadata())).shape == (0, 2, 64)
    check(prepare(), prepare().plan(metadata()))


def test_a_plan_must_know_how_many_rows_there_are(prepare):
    with pytest.raises(CallError, match=r"give plan T="):
        prepare(T=None)
