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
from phyai.testing.checks import CHECKS
from phyai.testing.kit import examine
from phyai.testing.report import Outcome
from phyai.testing.subject import Subject, about
from phyai_backend_flashinfer.rows import KERNELS

sys.path.insert(0, str(Path(__file__).parent))
from flashinfer_standin import BatchPrefillWithRaggedKVCacheWrapper, modules

pytest.importorskip("phyai_backend_reference")

#: Rows whose calls differ, and the architecture whose calls are claimed.
CALLED = {
    **dict.fromkeys(
        ("attention.fa2", "attention.masked_fa2", "attention.batch_fa2", "attention.ragged_fa2", "layer_norm",
         "kv_write", "gemm.bf16", "gemm.tiny_bf16", "gemm.fp8_tensor", "gemm.fp8_block_sm90"),
        "sm90",
    ),
    **dict.fromkeys(
        ("gemm.cutlass_bf16", "gemm.cutlass_fp8_tensor", "gemm.fp8_block_sm100", "gemm.nvfp4_cutlass",
         "gemm.nvfp4_a16_sm100"),
        "sm100",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return discover({})


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)


def on_a_cpu(id: str, arch: str = "sm90") -> Kernel:
    """The row with what it asks of a GPU taken for granted."""
    machine = {"device.type": "cuda", "device.vendor": "nvidia", "device.arch": arch, "lib.flashinfer": "0.7.4"}
    kernel = next(k for k in KERNELS if k.id == id)
    return attrs.evolve(kernel, when=kernel.when.given(machine), bands=())


@pytest.mark.parametrize("name", CALLED)
def test_a_row_conforms_over_the_stand_in(name: str, catalog: Catalog) -> None:
    kernel = on_a_cpu(f"flashinfer.{name}", CALLED[name])
    mine = attrs.evolve(catalog, kernels=(*(k for k in catalog.kernels if k.id != kernel.id), kernel))
    subject = Subject(kernel, about(kernel, mine), Environment.detect("cpu", libraries=()))
    report = examine(subject, seconds=1.2, checks=[c for c in CHECKS if c.name in ("values", "arguments", "refresh")])
    found = {check.name: check for check in report.checks}
    assert not {name: check.reason for name, check in found.items() if check.outcome is Outcome.FAILED}
    assert found["values"].outcome is Outcome.PASSED


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
