"""``cuda.attention_paged.prefill`` on a Hopper GPU: lengths, what lies past them, launches that overlap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from machine import Resources, normal
from phyai.facts import Facts
from phyai_backend_cuda.attention import prefill

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")]
#: Rounding of the result, of weights, and of the sum that the other half of the keys gave.
RELATIVE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}


def prepared(dtype: torch.dtype = torch.bfloat16, **params: Any) -> Any:
    facts = {"shape.heads": 8, "shape.kv_heads": 1, "shape.head_dim": 256, "device.sm_count": 132}
    name = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    # no protocol's Resources: an engine lends nested sites on top of these, and the row asks for none
    return prefill.prepare(Facts({**facts, "dtype.q": name}), {}, params, Resources())  # type: ignore[arg-type]


def metadata(queries: list[int], pages: list[int], keys: list[int]) -> dict[str, torch.Tensor]:
    values = {
        "cu_seqlens_q": [0, *torch.tensor(queries).cumsum(0).tolist()], "kv_indptr": list(range(len(keys) + 1)),
        "kv_indices": pages, "last_page_len": keys,
    }  # fmt: skip
    return {name: torch.tensor(value, dtype=torch.int32, device="cuda") for name, value in values.items()}


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, meta: dict[str, torch.Tensor]) -> torch.Tensor:
    want = torch.zeros(q.shape, dtype=torch.float64, device="cuda")
    ends, pages, keys = (meta[name].tolist() for name in ("cu_seqlens_q", "kv_indices", "last_page_len"))
    for b, n in enumerate(keys):
        rows = slice(ends[b], ends[b + 1])
        if n:
            s = torch.einsum("qhd,kd->hqk", q[rows].double(), k[pages[b], :n, 0].double()) / 16
            want[rows] = torch.einsum("hqk,kd->qhd", s.softmax(-1), v[pages[b], :n, 0].double())
    return want


def assert_right(y: torch.Tensor, want: torch.Tensor) -> None:
    assert y.isfinite().all()
    error = (y.double() - want).norm(dim=-1) / (want.norm(dim=-1) + 1e-3)
    assert float(error.max()) < RELATIVE[y.dtype]


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(
    ("queries", "keys", "tail"),
    [
        ([968], [968], 0), ([1], [1], 0), ([16], [64], 1), ([17], [65], 0), ([300], [129], 700),
        ([40, 0, 500, 3], [64, 10, 700, 0], 9), ([1200], [40], 0),
    ],
    ids=str,
)  # fmt: skip
def test_every_query_sees_the_keys_of_its_request_and_nothing_else(
    queries: list[int], keys: list[int], tail: int, splits: int, dtype: torch.dtype
) -> None:
    """Whatever lies past the last key, and in rows of q that belong to no request."""
    b, size = len(keys), max(keys) + 30
    pages = list(range(b, 0, -1))
    k, v = (normal(b + 2, size, 1, 256, seed=i, dtype=dtype) for i in (1, 2))
    q = normal(sum(queries) + tail, 8, 256, dtype=dtype)
    for page, n in zip(pages, keys, strict=True):
        k[page, n:] = v[page, n:] = float("nan")
    q[sum(queries) :] = float("nan")
    ready, meta = prepared(dtype, splits=splits), metadata(queries, pages, keys)
    y = ready.run(q, k, v, state=ready.plan(meta))
    assert_right(y, expected(q, k, v, meta))
    assert not y[sum(queries) :].any()
    assert torch.equal(ready.run(q, k, v, state=ready.plan(meta)), y)


def test_large_scores_and_ones_that_grow() -> None:
    """The greatest score of a row comes last, and tile after tile is more than the latitude above the one before."""
    q, k = normal(200, 8, 256), normal(1, 500, 1, 256, seed=1) * 0.1
    v = normal(1, 500, 1, 256, seed=2)
    k += q.float().mean((0, 1)).bfloat16()
    k *= torch.linspace(0.1, 30, 500, device="cuda")[None, :, None, None].bfloat16()
    meta, ready = metadata([200], [0], [500]), prepared()
    assert_right(ready.run(q, k, v, state=ready.plan(meta)), expected(q, k, v, meta))


def test_a_captured_graph_serves_other_lengths() -> None:
    q, k, v = normal(900, 8, 256), *(normal(2, 950, 1, 256, seed=i) for i in (1, 2))
    meta, ready = metadata([900], [1], [900]), prepared()
    state = ready.plan(meta)
    ready.run(q, k, v, state=state)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ready.run(q, k, v, state=state)
    for queries, page, keys in ((900, 1, 900), (700, 0, 950), (1, 1, 3), (0, 0, 0)):
        for name, value in metadata([queries], [page], [keys]).items():
            meta[name].copy_(value)
        ready.plan(meta)
        graph.replay()
        assert_right(y, expected(q, k, v, meta))
        assert not y[queries:].any()


def test_inputs_are_those_that_the_kernel_in_front_writes() -> None:
    ready, meta = prepared(), metadata([968], [0], [968])
    state, held = ready.plan(meta), [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for shape in
                                     ((968, 8, 256), (1, 1018, 1, 256), (1, 1018, 1, 256))]  # fmt: skip
    given = [normal(*t.shape, seed=i) for i, t in enumerate(held)]
    want = [expected(given[0] * f, given[1] * f, given[2] * f, meta) for f in (1, 2)]
    y = torch.empty_like(held[0])
    for f in (1, 2, 1, 2):
        torch.cuda._sleep(200_000)  # type: ignore[no-untyped-call]
        for to, of in zip(held, given, strict=True):
            torch.mul(of, f, out=to)
        ready.run(*held, out=y, state=state)
        assert_right(y, want[f - 1])
