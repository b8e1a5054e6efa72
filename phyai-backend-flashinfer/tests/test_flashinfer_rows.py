"""FlashInfer's rows: what they take, and why not; on a GPU with the library, their numbers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.kernel import Kernel, Prepared
from phyai_backend_flashinfer import attention
from phyai_backend_flashinfer.attention_paged import split_pages
from phyai_backend_flashinfer.rows import KERNELS

BY_ID: Mapping[str, Kernel] = {kernel.id: kernel for kernel in KERNELS}
EXPERT = {
    "shape.T": 50, "shape.heads": 8, "shape.kv_heads": 1, "shape.head_dim": 256, "shape.pages": 1,
    "shape.page_size": 1024, "dtype.q": "bf16", "dtype.k_cache": "bf16", "dtype.v_cache": "bf16", "dtype.o": "bf16",
    "attrs.causal": False,
}  # fmt: skip


def on(device: str, changes: Mapping[str, Any] = {}, version: str | None = "0.7.4") -> Facts:
    facts = Environment.simulated(device, libraries=()).facts()
    return facts.replace({"lib.flashinfer": version, **EXPERT, **changes})


@pytest.mark.parametrize(("head_dim", "takes"), [(64, True), (72, False), (128, True), (256, True), (512, False)])
def test_head_sizes(head_dim: int, takes: bool) -> None:
    when = BY_ID["flashinfer.attention_paged.fa2"].when
    assert when.holds(on("h200", {"shape.head_dim": head_dim})) == takes


@given(st.integers(1, 5).map(lambda n: 8 * n), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), max_size=4))
@settings(max_examples=60, deadline=None)
def test_smaller_pages_name_the_same_keys(page_size: int, requests: list[tuple[int, int]]) -> None:
    order, taken, lengths = torch.randperm(12).tolist(), [0], []
    for pages, last in requests:
        taken.append(taken[-1] + pages)
        lengths.append(last if pages else 0)
    metadata = {
        "cu_seqlens_q": torch.zeros(len(requests) + 1, dtype=torch.int32),
        "kv_indptr": torch.tensor(taken, dtype=torch.int32),
        "kv_indices": torch.tensor(order[: taken[-1]], dtype=torch.int32),
        "last_page_len": torch.tensor(lengths, dtype=torch.int32),
    }
    size, small = split_pages(metadata, page_size)

    def keys(size: int, data: Mapping[str, torch.Tensor], request: int) -> list[int]:
        pages = data["kv_indices"][data["kv_indptr"][request] : data["kv_indptr"][request + 1]].tolist()
        slots = [page * size + i for page in pages for i in range(size)]
        return slots[: (len(pages) - 1) * size + int(data["last_page_len"][request])] if pages else []

    for request in range(len(requests)):
        assert keys(size, small, request) == keys(page_size, metadata, request)


def test_mixed_dtypes_are_refused() -> None:
    assert not BY_ID["flashinfer.attention_paged.fa2"].when.holds(on("h200", {"dtype.k_cache": "fp16"}))


# ---------------------------------------------------------------------------------------------- on a GPU

gpu = pytest.mark.gpu
if not torch.cuda.is_available():
    WHY_NOT = "needs an NVIDIA GPU"
elif importlib.util.find_spec("flashinfer") is None:
    WHY_NOT = "needs flashinfer-python"
else:
    WHY_NOT = ""
here = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "has both")


class Resources:
    """What an engine would lend."""

    def __init__(self) -> None:
        self.objects: dict[object, Any] = {}

    def workspace(self, key: str, nbytes: int) -> torch.Tensor:
        return self.shared(key, lambda: torch.zeros(nbytes, dtype=torch.uint8, device="cuda"))

    def shared(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self.objects:
            self.objects[key] = make()
        return self.objects[key]

    def site(self, part: str, op: str, facts: Mapping[str, Any], weights: Mapping[str, Any]) -> Any:
        raise NotImplementedError


def prepare(id: str, facts: Mapping[str, Any], **weights: torch.Tensor) -> Prepared:
    return BY_ID[id].load()(Facts(facts), weights, {}, Resources())


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=1e-2)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[S, heads, D] queries over one key head, in float64."""
    scores = q.double().transpose(0, 1) @ k.double()[:, 0].T * q.shape[-1] ** -0.5
    return (scores.softmax(-1) @ v.double()[:, 0]).transpose(0, 1)


@gpu
@here
@pytest.mark.parametrize("variant", ["fa2", "fa3"])
def test_paged_attention_replays_with_other_lengths(variant: str) -> None:
    if variant == "fa3" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("FA3 is Hopper's")
    prepared = prepare(f"flashinfer.attention_paged.{variant}", {**EXPERT, "shape.T": 52})
    assert prepared.plan is not None
    q, caches = normal(52, 8, 256), [normal(1, 1024, 1, 256) for _ in range(2)]

    def plan(rows: int, length: int) -> Any:
        values = {"cu_seqlens_q": [0, rows], "kv_indptr": [0, 1], "kv_indices": [0], "last_page_len": [length]}
        return prepared.plan({name: torch.tensor(v, dtype=torch.int32) for name, v in values.items()})

    state = plan(50, 1018)
    prepared.run(q, *caches, state=state)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = prepared.run(q, *caches, state=state)
    for rows, length in ((50, 1018), (50, 300), (20, 64), (52, 1024), (1, 1)):
        assert plan(rows, length) is state
        o.fill_(float("nan"))
        graph.replay()
        close(o[:rows], attend(q[:rows], caches[0][0, :length], caches[1][0, :length]))
        assert not o[rows:].any(), "rows of no request are zero"


@gpu
@here
def test_single_attention() -> None:
    q, k, v = normal(1, 40, 8, 256), normal(1, 70, 1, 256), normal(1, 70, 1, 256)
    close(prepare("flashinfer.attention.fa2", {"attrs.layout": "padded"}).run(q, k, v)[0], attend(q[0], k[0], v[0]))


@gpu
@here
@pytest.mark.parametrize("offset", [0, 1])
def test_norms(offset: int) -> None:
    x, residual, w = normal(3, 7, 1024), normal(3, 7, 1024), normal(1024)
    facts = {"attrs.eps": 1e-6, "attrs.offset": offset, "shape.D": 1024}

    def norm(t: torch.Tensor) -> torch.Tensor:
        return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6) * (offset + w.double())

    close(prepare("flashinfer.rms_norm", facts, weight=w).run(x), norm(x.double()))
    total, before = x.double() + residual.double(), x.clone()
    y = prepare("flashinfer.rms_norm_add", facts, weight=w).run(x, residual)
    torch.testing.assert_close(y.double(), norm(total), rtol=2e-2, atol=2e-2)
    close(residual, total)
    assert torch.equal(x, before), "x is the caller's"


@gpu
@here
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_gated_activation(kind: str) -> None:
    x = normal(5, 2 * 512)
    gate, up = x.double().chunk(2, -1)
    F = torch.nn.functional
    act = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda t: F.gelu(t, approximate="tanh")}[kind]
    close(prepare("flashinfer.gated_activation", {"attrs.activation": kind}).run(x), act(gate) * up)


@gpu
@here
def test_rope_leaves_its_inputs() -> None:
    q, k, positions = normal(5, 8, 256), normal(5, 1, 256), torch.tensor([4, 0, 9, 1, 1], device="cuda")
    angle = torch.arange(10, device="cuda")[:, None] / 100.0 ** (torch.arange(128, device="cuda") / 128)
    cos_sin = torch.cat((angle.cos(), angle.sin()), -1).float()
    before = q.clone()
    got = prepare("flashinfer.rope", EXPERT, cos_sin=cos_sin).run(q, k, positions)
    cos, sin = cos_sin[positions].double()[:, None].chunk(2, -1)
    for y, x in zip(got, (q, k), strict=True):
        a, b = x.double().chunk(2, -1)
        close(y, torch.cat((a * cos - b * sin, b * cos + a * sin), -1))
    assert torch.equal(q, before)


@pytest.mark.parametrize(("rotary", "takes"), [(4, False), (8, False), (16, True), (64, True)])
def test_rope_takes_halves_of_whole_steps_of_eight(rotary: int, takes: bool) -> None:
    when = BY_ID["flashinfer.rope"].when
    dtypes = {"dtype.cos_sin": "fp32", **dict.fromkeys(("dtype.q", "dtype.k", "dtype.q_out", "dtype.k_out"), "bf16")}
    assert when.holds(on("h200", {**dtypes, "shape.head_dim": 64, "shape.rotary_dim": rotary})) == takes


def test_queries_in_front_of_the_first_key_give_zeros_where_the_library_refuses_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in for the library: as torch computes it, and strict as the library is."""

    def prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, **_: Any) -> torch.Tensor:
        assert len(k) >= len(q) or not causal
        mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q)) if causal else None
        heads = (t.transpose(0, 1) for t in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(0, 1)

    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(single_prefill_with_kv_cache=prefill))
    run = attention.prepare_single_fa2(Facts({"attrs.causal": True}), {}, {}, SimpleNamespace()).run
    q, k, v = torch.randn(1, 5, 2, 64), torch.randn(1, 3, 2, 64), torch.randn(1, 3, 2, 64)
    o = run(q, k, v)
    assert torch.equal(o[:, :2], torch.zeros(1, 2, 2, 64))
    torch.testing.assert_close(o[:, 2:], run(q[:, 2:], k, v))
