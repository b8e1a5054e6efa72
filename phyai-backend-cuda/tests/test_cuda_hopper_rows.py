"""The rows for Hopper without a GPU: what a kernel would compute is computed from the very arguments of its launch.

So the predicates, the packing, the strides and the pointers that the host code passes are held to the reference by the
conformance kit; the kernels themselves are what ``test_cuda_hopper_gpu.py`` holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs
import pytest
import torch
from hopper_simulation import Map, Simulated, box_map
from machine import Resources, granted
from phyai.catalog import Catalog
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.kernel import Kernel
from phyai.op import ArgSpec
from phyai.ops import CORE_OPS
from phyai.testing.case import MEMORY, Case
from phyai.testing.kit import examine, examine_call
from phyai.testing.report import Outcome
from phyai_backend_cuda.attention import paged, prefill, short, split
from phyai_backend_cuda.attention.split import cut_for
from phyai_backend_cuda.norms import overlap
from phyai_backend_cuda.records import attention, norms, skinny, skinny_fused
from phyai_backend_cuda.runtime import early
from phyai_backend_cuda.runtime.nvrtc import SOURCES
from phyai_backend_cuda.skinny import gemm, launch

ON_GPU = torch.cuda.is_available()
pytestmark = pytest.mark.skipif(ON_GPU, reason="the kernels themselves are tested where there is a GPU")

H200 = Environment.simulated("h200", libraries=()).facts().replace({"lib.cupy": "14.2.0"})
#: The kernels that are launched to overlap their neighbours.
KERNELS = (*attention.KERNELS, *skinny.KERNELS, *skinny_fused.KERNELS, *norms.KERNELS)
BY_ID: Mapping[str, Kernel] = {kernel.id: kernel for kernel in KERNELS}
OPS = {op.name: op for op in CORE_OPS}


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, function: str, defines: Mapping[str, int], *, cluster: int = 1, **_: Any) -> Simulated:
        return Simulated(name, defines, cluster)

    for module in (prefill, short, split, overlap, launch):
        monkeypatch.setattr(module, "load", load)
        monkeypatch.setattr(module, "current_stream", lambda: 0)
    monkeypatch.setattr(early, "settled", lambda: None)
    monkeypatch.setattr(short, "box_map", box_map)
    monkeypatch.setattr(paged, "on_device", torch.is_tensor)
    monkeypatch.setattr(prefill, "box_map", Map)


@pytest.mark.parametrize("id", BY_ID)
def test_what_a_row_claims_it_computes(id: str, catalog: Catalog) -> None:
    report = examine(granted(BY_ID[id], catalog, H200), seconds=3, calls=40)
    assert not [(check.name, check.reason, check.call) for check in report.checks if check.outcome is Outcome.FAILED]
    assert any(check.outcome is Outcome.PASSED for check in report.checks)


def test_queries_and_keys_that_heads_have_in_common_are_described_as_if_each_had_its_own() -> None:
    """The copy engine takes no stride that is less than a row."""
    common = torch.randn(3, 5, 1, 256).bfloat16()
    q, k, v = common[0].expand(5, 4, 256), *(t[None].expand(1, 5, 2, 256) for t in common[1:])
    facts = {"shape.heads": 4, "shape.kv_heads": 2, "shape.head_dim": 256, "dtype.q": "bf16"}
    prepared = prefill.prepare(Facts(facts), {}, {}, Resources())
    given = {"cu_seqlens_q": [0, 5], "kv_indptr": [0, 1], "kv_indices": [0], "last_page_len": [5]}
    assert prepared.plan is not None
    state = prepared.plan({name: torch.tensor(values, dtype=torch.int32) for name, values in given.items()})
    o = prepared.run(q, k, v, state=state)
    one = torch.nn.functional.scaled_dot_product_attention(*(t.double().transpose(0, 1) for t in common))
    torch.testing.assert_close(o.double(), one.transpose(0, 1).expand(5, 4, 256), rtol=1e-2, atol=1e-2)


def test_codes_that_begin_anywhere_are_read_from_a_multiple_of_16_bytes() -> None:
    from phyai.quant.realize import quantize_weight
    from phyai.quant.scheme import QuantScheme, TensorQuant
    from phyai_backend_cuda.skinny.layout import pack

    plain, x = torch.randn(64, 128), torch.randn(3, 128).bfloat16()
    given = [pack(quantize_weight(t, QuantScheme(TensorQuant("fp8_e4m3", "channel")))) for t in (plain, -plain)]
    codes = given[0].packed["codes"]
    moved = torch.empty(len(codes) + 1, dtype=torch.uint8)[1:].copy_(codes)
    held = gemm.Product(attrs.evolve(given[0], packed={"codes": moved}), None, Facts({"dtype.x": "bf16"}))
    want = gemm.Product(given[0], None, Facts({"dtype.x": "bf16"}))(x)
    torch.testing.assert_close(held(x), want, rtol=0, atol=0)
    held.refresh(given[1], None)
    torch.testing.assert_close(held(x), -want, rtol=0, atol=0)


SILU = {"activation": "silu"}
QKV = {
    "T": 5, "K": 192, "pages": 3, "page_size": 4, "max_position": 30, "heads": 3, "kv_heads": 2, "head_dim": 64,
    "rotary_dim": 32, "N": 448,
}  # fmt: skip
PAGED = {"T": 9, "B": 2, "pages": 3, "page_size": 8, "entries": 3, "heads": 4, "kv_heads": 2, "head_dim": 64}
SHORT = {"B": 3, "Sq": 9, "Sk": 11, "heads": 4, "kv_heads": 2, "head_dim": 24}
CALLS: list[tuple[str, ArgSpec]] = [
    ("cuda.gemm.skinny_16bit", ArgSpec("", {"M": 6, "N": 24, "K": 192}, {}, {}, ("bias",))),
    ("cuda.gemm.skinny_16bit", ArgSpec("", {"M": 6, "N": 4616, "K": 640}, {}, {}, ("bias",))),  # 128 rows to a block
    ("cuda.gated_mlp.skinny_16bit", ArgSpec("", {"M": 6, "K": 64, "I": 128, "N": 16}, {}, SILU)),
    ("cuda.gated_mlp.skinny_16bit", ArgSpec("", {"M": 6, "K": 640, "I": 2304, "N": 16}, {}, SILU)),
    ("cuda.gemm_gated_residual.skinny_16bit", ArgSpec("", {"M": 6, "R": 2, "N": 24, "K": 192}, {}, {}, ("bias",))),
    ("cuda.gated_mlp_gated_residual.skinny_16bit", ArgSpec("", {"M": 6, "R": 1, "K": 64, "I": 128, "N": 16}, {}, SILU)),
    ("cuda.qkv_rope_kv_write.skinny_16bit", ArgSpec("", QKV, {}, {"style": "neox"}, ("bias",))),
    ("cuda.qkv_rope_kv_write.skinny_16bit", ArgSpec("", {**QKV, "rotary_dim": 6}, {}, {"style": "interleaved"})),
    ("cuda.rms_norm.overlap", ArgSpec("", {"M": 6, "D": 72}, {}, {"offset": 1}, ("weight",))),
    ("cuda.rms_norm_add.overlap", ArgSpec("", {"M": 6, "D": 72})),
    ("cuda.ada_rms_norm.overlap", ArgSpec("", {"M": 6, "R": 2, "D": 40})),
    ("cuda.attention_paged.split", ArgSpec("", PAGED)),
    ("cuda.attention.short", ArgSpec("", SHORT)),
    ("cuda.attention.short", ArgSpec("", {**SHORT, "B": 1, "Sq": 130, "Sk": 256}, {}, {"scale": 0.3})),
    ("cuda.attention_paged.prefill", ArgSpec("", {**PAGED, "entries": 2, "head_dim": 256}, {}, {"single_page": True})),
]


@pytest.mark.parametrize("form", MEMORY)
@pytest.mark.parametrize(("id", "spec"), CALLS, ids=str)
def test_every_form_of_memory(id: str, spec: ArgSpec, form: str, catalog: Catalog) -> None:
    case = attrs.evolve(Case.of(OPS[BY_ID[id].op], spec), memory=form).fitted(OPS[BY_ID[id].op])
    report = examine_call(granted(BY_ID[id], catalog, H200), case)
    assert not [c.reason for c in report.checks if c.outcome is Outcome.FAILED]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.id)
def test_a_row_asks_for_hopper_and_for_cupy(kernel: Kernel) -> None:
    for missing in ({"lib.cupy": None}, {"device.arch": "sm100"}, {"device.arch": "sm80"}, {"device.type": "cpu"}):
        assert kernel.when.given(dict(H200.replace(missing))).why_not({}) is not None


@pytest.mark.parametrize(
    ("facts", "held"),
    [
        ({}, True), ({"shape.T": 512}, True), ({"shape.T": 513}, False), ({"shape.head_dim": 96}, False),
        ({"dtype.v_cache": "fp16"}, False), ({"attrs.window": 1}, True), ({"attrs.window": 0}, False),
        ({"attrs.soft_cap": 5.0}, True), ({"attrs.soft_cap": 0}, False), ({"shape.group": 65}, False),
    ],
)  # fmt: skip
def test_which_calls_attention_claims(facts: dict[str, Any], held: bool) -> None:
    call = {
        "shape.T": 50, "shape.head_dim": 256, "shape.group": 8, "shape.kv_heads": 1,
        **{f"dtype.{name}": "bf16" for name in ("q", "k_cache", "v_cache", "o")},
    }  # fmt: skip
    assert BY_ID["cuda.attention_paged.split"].when.holds({**H200, **call, **facts}) == held


@pytest.mark.parametrize(
    ("facts", "held"),
    [
        ({}, True), ({"shape.Sk": 512}, True), ({"shape.Sk": 513}, False), ({"shape.Sk": 0}, True),
        ({"shape.Sq": 5000}, True),
        ({"shape.head_dim": 76}, False), ({"shape.head_dim": 136}, False), ({"shape.head_dim": 128}, True),
        ({"shape.head_dim": 104, "shape.Sk": 320}, True), ({"shape.head_dim": 104, "shape.Sk": 321}, False),
        ({"dtype.v": "fp16"}, False), ({"dtype.mask": "bool"}, False), ({"attrs.causal": True}, False),
        ({"attrs.window": 4}, False), ({"attrs.soft_cap": 5.0}, False), ({"attrs.layout": "ragged"}, False),
        ({"attrs.scale": 0.5}, True), ({"attrs.scale": -0.5}, False), ({"attrs.scale": 0}, False),
    ],
)  # fmt: skip
def test_which_calls_attention_of_short_sequences_claims(facts: dict[str, Any], held: bool) -> None:
    call = {
        "shape.Sk": 256, "shape.Sq": 256, "shape.head_dim": 72, "shape.group": 1, "shape.heads": 16,
        "shape.kv_heads": 16, "attrs.layout": "padded", "attrs.causal": False,
        **{f"dtype.{name}": "bf16" for name in "qkvo"},
    }  # fmt: skip
    assert BY_ID["cuda.attention.short"].when.holds({**H200, **call, **facts}) == held


@pytest.mark.parametrize(
    ("facts", "held"),
    [
        ({}, True), ({"shape.T": 1}, True), ({"shape.T": 8000}, True), ({"shape.head_dim": 128}, False),
        ({"dtype.v_cache": "fp16"}, False), ({"attrs.causal": True}, False), ({"attrs.window": 100}, False),
        ({"attrs.soft_cap": 5.0}, False), ({"attrs.scale": 0.1}, True), ({"attrs.scale": -0.1}, False),
        ({"attrs.single_page": False}, False), ({"shape.group": 3}, False), ({"attrs.fixed_lengths": False}, True),
    ],
)  # fmt: skip
def test_which_calls_attention_of_a_prefix_claims(facts: dict[str, Any], held: bool) -> None:
    call = {
        "shape.T": 968, "shape.head_dim": 256, "shape.group": 8, "shape.kv_heads": 1, "attrs.causal": False,
        "attrs.single_page": True, **{f"dtype.{name}": "bf16" for name in ("q", "k_cache", "v_cache", "o")},
    }  # fmt: skip
    assert BY_ID["cuda.attention_paged.prefill"].when.holds({**H200, **call, **facts}) == held


def test_a_cluster_of_sixteen_is_taken_only_where_it_fits() -> None:
    assert [cut_for(7, 132, widest)[0] for widest in (0, 6, 7)] == [8, 8, 16]
    assert cut_for(9, 132, 16)[0] == 8  # 144 blocks have no processors of their own


def test_all_blocks_of_attention_run_at_once_as_long_as_two_fit_on_a_processor() -> None:
    for clusters in range(1, 265):
        splits, stages = cut_for(clusters, 132, 7)
        assert splits * clusters <= (132 if stages == 2 or splits == 16 else 264)


@pytest.mark.parametrize(
    "source",
    ["skinny.cu", "skinny_pair.cu", "norm.cu", "attention.cu", "attention_prefill.cu", "attention_short.cu"],
)
def test_nothing_but_weights_is_touched_before_the_kernel_in_front_has_ended(source: str) -> None:
    """A launch may overlap whatever is in front of it, so inputs are read and outputs written after the wait."""
    text = (SOURCES / source).read_text(encoding="utf-8")
    body = text[text.index('extern "C"') :]
    assert body.count("wait_previous();") == 1
    before, after = body.split("wait_previous();")
    weights = {"w", "group_scale", "group_zero", "row_scale", "weight"}
    sizes = {"k", "m", "n", "rows", "requests", "tokens"}
    places = {"row", "slot", "sixteenth"}
    if source == "attention_short.cu":  # it only tells where its inputs are
        sizes |= {"tiles"}
        assert set(re.findall(r"(\w+)\(maps\.\w+", before)) == {"prefetch_map"}
    assert set(re.findall(r"\bp\.(\w+)", before)) <= weights | sizes
    assert set(re.findall(r"\bb\.(\w+)\(", before)) <= {"load_w", "prefetch"} | places
    assert "return" not in before  # every block waits, so that whoever waits for it waits for all in front
    assert not re.search(r"\b(load_x|load_q|find|x_rows\.load|box_load)\b", before)
    assert "wait_previous" not in after


@pytest.mark.parametrize(
    ("source", "arrive"), [("skinny.cu", "cluster_arrive();"), ("skinny_pair.cu", "cluster_arrive_relaxed();")]
)
def test_no_block_ends_while_a_peer_may_push_to_it(source: str, arrive: str) -> None:
    text = (SOURCES / source).read_text(encoding="utf-8")
    body = text[text.index('extern "C"') :]
    assert body.index("fence_mbar_init();") < body.index("mbar_expect(bar") < body.index(arrive)
    assert body.index(arrive) < body.index("cluster_wait();")
    assert body.index("cluster_wait();") < body.index("push4(") < body.index("mbar_wait(bar, 0);")
    assert "return" not in body


def test_weights_are_waited_for_once_they_are_there_and_each_time_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    monkeypatch.setattr(early, "settled", lambda: noted.append("waited"))
    prepared = early.settling(torch.neg, lambda new: noted.append(new["weight"]))
    assert prepared.run is torch.neg
    assert prepared.refresh is not None
    prepared.refresh({"weight": "written"})
    assert noted == ["waited", "written", "waited"]
