"""What rows give the library and make of its results: conformance on a CPU, over a stand-in that is as strict."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import pytest
import torch
from phyai.catalog import Catalog
from phyai.dispatch.resources import EngineResources
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.kernel import Kernel
from phyai.plugins import discover
from phyai.testing.kit import examine
from phyai.testing.report import Outcome
from phyai.testing.subject import Subject, about
from phyai_backend_flashinfer.rows import KERNELS

sys.path.insert(0, str(Path(__file__).parent))
from flashinfer_standin import BatchPrefillWithRaggedKVCacheWrapper, modules

pytest.importorskip("phyai_backend_reference")

HOPPER = {"device.type": "cuda", "device.vendor": "nvidia", "device.arch": "sm90", "lib.flashinfer": "0.7.4"}
CALLED = [
    *(f"attention.{name}" for name in ("fa2", "fa3", "masked_fa2")),
    *(f"attention.{layout}_{kernel}" for layout in ("batch", "ragged") for kernel in ("fa2", "fa3")),
    "layer_norm", "kv_write", "gemm.bf16", "gemm.tiny_bf16", "gemm.fp8_tensor", "gemm.fp8_block_sm90",
]  # fmt: skip


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return discover({})


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)


def on_a_cpu(id: str) -> Kernel:
    """The row with what it asks of a Hopper GPU taken for granted."""
    kernel = next(k for k in KERNELS if k.id == id)
    return attrs.evolve(kernel, when=kernel.when.given(HOPPER), bands=())


@pytest.mark.parametrize("name", CALLED)
def test_a_row_conforms_over_the_stand_in(name: str, catalog: Catalog) -> None:
    kernel = on_a_cpu(f"flashinfer.{name}")
    mine = attrs.evolve(catalog, kernels=(*(k for k in catalog.kernels if k.id != kernel.id), kernel))
    report = examine(Subject(kernel, about(kernel, mine), Environment.detect("cpu", libraries=())), seconds=2.5)
    failed = {check.name: check.reason for check in report.checks if check.outcome is Outcome.FAILED}
    assert not failed
    assert {check.name: check.calls for check in report.checks}["values"] > 3


@pytest.mark.parametrize(("captured", "plans"), [(True, 2), (False, 3)])
def test_a_batch_is_planned_where_its_lengths_change_and_a_captured_one_once(captured: bool, plans: int) -> None:
    """Two graphs of other lengths replay in turn: neither may be planned over by the other."""
    facts = Facts({"attrs.causal": False, "mode.capture": captured})
    resources = EngineResources(Environment.detect("cpu", libraries=()).device)
    run = on_a_cpu("flashinfer.attention.batch_fa2").load()(facts, {}, {}, resources).run

    def call(queries: int) -> None:
        q, kv = torch.randn(2, queries, 2, 64).bfloat16(), torch.randn(2, 5, 1, 64).bfloat16()
        run(q, kv, kv)

    before = BatchPrefillWithRaggedKVCacheWrapper.plans
    for queries in (3, 3, 4, 3):
        call(queries)
    assert BatchPrefillWithRaggedKVCacheWrapper.plans - before == plans
