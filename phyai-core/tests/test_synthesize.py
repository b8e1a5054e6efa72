"""Tensors synthesized from argument specs: the shapes, dtypes and meanings that the signature asks for."""

from __future__ import annotations

import math

import pytest
from phyai.dims import bind_dims
from phyai.errors import CallError
from phyai.op import ArgSpec, Op
from phyai.ops import CORE_OPS
from phyai.synthesize import synthesize, torch_dtype

torch = pytest.importorskip("torch", reason="tensors are torch's")

OPS = {op.name: op for op in CORE_OPS}
SMALL = [
    pytest.param(op, spec, id=f"{op.name}-{spec.name}")
    for op in CORE_OPS
    for spec in op.arg_specs
    if spec.name.startswith("small.")
]


def spec_of(op: str, name: str) -> ArgSpec:
    return next(spec for spec in OPS[op].arg_specs if spec.name == name)


@pytest.mark.parametrize(("op", "spec"), SMALL)
def test_tensors_have_the_shapes_and_dtypes_of_the_spec(op: Op, spec: ArgSpec) -> None:
    call = synthesize(op, spec)
    given = call.inputs | call.weights | call.metadata
    tensors = [t for t in op.tensors if given.get(t.name) is not None]
    dims = bind_dims(tensors, {t.name: tuple(given[t.name].shape) for t in tensors})
    assert dims.items() <= spec.dims.items()
    for t in tensors:
        assert given[t.name].dtype == torch_dtype(call.dtypes[t.name])
    assert list(call.inputs) == [t.name for t in op.inputs]
    assert {n for n, t in call.inputs.items() if t is None} == {
        t.name for t in op.inputs if t.optional and t.name not in spec.present
    }


@pytest.mark.parametrize(("op", "spec"), SMALL)
def test_a_seed_is_a_call(op: Op, spec: ArgSpec) -> None:
    first, again = synthesize(op, spec), synthesize(op, spec)
    other = synthesize(op, spec, seed=1)
    for name, tensor in (first.inputs | first.weights | first.metadata).items():
        same = (again.inputs | again.weights | again.metadata)[name]
        assert (tensor is None and same is None) or torch.equal(tensor, same)
    changed = [name for name, t in first.inputs.items() if t is not None and not torch.equal(t, other.inputs[name])]
    assert changed or spec.dims.get("V", 9) <= 3


def test_another_dtype_reaches_every_float_that_may_have_it() -> None:
    call = synthesize(OPS["rope"], spec_of("rope", "small.neox"), dtype="fp16")
    assert {n: call.dtypes[n] for n in ("q", "k", "cos_sin", "positions", "q_out")} == {
        "q": "fp16", "k": "fp16", "cos_sin": "fp32", "positions": "int64", "q_out": "fp16",
    }  # fmt: skip


def test_facts_are_those_of_the_call() -> None:
    call = synthesize(OPS["gemm"], spec_of("gemm", "pi05.expert.down"))
    facts = call.facts({"device.type": "cpu"})
    assert (facts["shape.M"], facts["shape.N"], facts["shape.K"]) == (50, 1024, 4096)
    assert (facts["role"], facts["model.family"], facts["device.type"]) == ("expert", "pi05", "cpu")
    assert "dtype.bias" not in facts


def test_products_come_out_near_one() -> None:
    call = synthesize(OPS["gemm"], spec_of("gemm", "pi05.expert.down"), dtype="fp32")
    assert 0.8 < (call.inputs["x"] @ call.weights["weight"].T).std() < 1.2


def test_masks_leave_no_row_empty() -> None:
    mask = synthesize(OPS["attention"], spec_of("attention", "small.mask")).inputs["mask"]
    assert mask.any(-1).all()
    assert not mask.all()


def test_slots_are_distinct_places_of_the_cache() -> None:
    spec = spec_of("kv_write", "small.fp32")
    slots = synthesize(OPS["kv_write"], spec).inputs["slots"]
    assert sorted(slots.tolist()) == list(range(spec.dims["pages"] * spec.dims["page_size"]))


def test_indices_of_a_shard_lie_on_both_sides_of_its_bounds() -> None:
    spec = spec_of("embedding", "small.shard")
    wide = ArgSpec("wide", {**spec.dims, "M": 200}, spec.dtypes, spec.attrs)
    ids = synthesize(OPS["embedding"], wide).inputs["ids"]
    assert ids.min() < 4 <= 10 <= ids.max()
    assert ids.min() >= 0


def test_indices_of_a_whole_table_are_rows_of_it() -> None:
    spec = spec_of("embedding", "small.plain")
    ids = synthesize(OPS["embedding"], ArgSpec("wide", {**spec.dims, "M": 200})).inputs["ids"]
    assert set(ids.tolist()) == set(range(spec.dims["V"]))


def test_ragged_sequences_fill_their_tensors_and_have_keys_for_their_queries() -> None:
    spec = spec_of("attention", "small.ragged")
    call = synthesize(OPS["attention"], spec)
    q, k = call.inputs["cu_seqlens_q"], call.inputs["cu_seqlens_k"]
    assert (q[0], q[-1], k[0], k[-1]) == (0, spec.dims["Sq"], 0, spec.dims["Sk"])
    assert (q.diff() >= 1).all()
    assert (k.diff() >= q.diff()).all()
    assert call.inputs["q"].dim() == 3


@pytest.mark.parametrize("spec", OPS["attention_paged"].arg_specs, ids=lambda spec: spec.name)
def test_paged_metadata_refer_to_pages_that_are_there(spec: ArgSpec) -> None:
    if not spec.name.startswith("small."):
        spec = ArgSpec(spec.name, {**spec.dims, "head_dim": 1, "heads": 1, "kv_heads": 1}, spec.dtypes, spec.attrs)
    m, dims = synthesize(OPS["attention_paged"], spec).metadata, spec.dims
    assert all(t.dtype == torch.int32 for t in m.values())
    served = int(m["cu_seqlens_q"][-1])
    assert m["cu_seqlens_q"][0] == 0
    assert served == dims["T"] if spec.attrs.get("fixed_lengths") else dims["T"] - 2 <= served <= dims["T"]
    assert (m["cu_seqlens_q"].diff() >= 1).all()
    assert (m["kv_indptr"][0], m["kv_indptr"][-1]) == (0, dims["entries"])
    assert (m["kv_indptr"].diff() >= 1).all()
    assert len(set(m["kv_indices"].tolist())) == dims["entries"]
    assert m["kv_indices"].max() < dims["pages"]
    assert ((m["last_page_len"] >= 1) & (m["last_page_len"] <= dims["page_size"])).all()
    if spec.attrs.get("single_page"):
        assert (m["kv_indptr"].diff() == 1).all()


def test_rotary_tables_are_cosines_and_sines() -> None:
    table = synthesize(OPS["rope"], spec_of("rope", "small.neox")).weights["cos_sin"]
    angle = 3 / 10000 ** (1 / 4)
    assert table[3, 1] == pytest.approx(math.cos(angle), rel=1e-6)
    assert table[3, 5] == pytest.approx(math.sin(angle), rel=1e-6)


def test_three_axes_have_positions_each() -> None:
    call = synthesize(OPS["rope"], spec_of("rope", "small.mrope"))
    assert tuple(call.inputs["positions"].shape) == (3, 4)


def test_a_missing_dimension_is_named() -> None:
    with pytest.raises(CallError, match="the argument spec gives no K, which x needs"):
        synthesize(OPS["gemm"], ArgSpec("no K", {"M": 1, "N": 1}))


def test_an_unknown_dtype_is_an_error() -> None:
    with pytest.raises(CallError, match="torch has no dtype 'int9'"):
        torch_dtype("int9")
