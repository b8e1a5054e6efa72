"""The core's ops: signatures that hold together, facts that policies rely on, argument specs that fit them."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from phyai.calls import call_facts, fill_dtypes
from phyai.catalog import op_vocabulary
from phyai.dims import bind_dims, dim_names, dim_size
from phyai.facts import FactKind
from phyai.op import ArgSpec, Op
from phyai.ops import CORE_OPS
from phyai.ops.shapes import COSMOS3, EXPERT, PREFIX, PREFIX_TOKENS, VISION

OPS = {op.name: op for op in CORE_OPS}
SPECS = [pytest.param(op, spec, id=f"{op.name}-{spec.name}") for op in CORE_OPS for spec in op.arg_specs]

WANTED = {
    "gemm", "attention", "attention_paged", "kv_write", "rms_norm", "rms_norm_add", "ada_rms_norm", "layer_norm",
    "group_norm", "channel_l2_norm", "activation", "gated_activation", "conv1d", "conv2d", "conv3d", "causal_conv",
    "embedding", "rope", "modulation", "gated_residual", "quantize_activation", "gated_mlp", "qkv_rope_kv_write",
    "mlp", "layer_norm_add", "gemm_gated_residual", "gated_mlp_gated_residual", "patch_embedding",
}  # fmt: skip


def test_every_op_is_there_once() -> None:
    assert {op.name for op in CORE_OPS} >= WANTED
    assert len({op.name for op in CORE_OPS}) == len(CORE_OPS)


def test_names_and_aliases_mean_one_op_each() -> None:
    spellings = [spelling for op in CORE_OPS for spelling in (op.name, *op.aliases)]
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize(
    ("alias", "name"),
    [("layernorm", "layer_norm"), ("rmsnorm", "rms_norm"), ("adarmsnorm", "ada_rms_norm"), ("modulate", "modulation"),
     ("rmsnorm_add", "rms_norm_add")],
)  # fmt: skip
def test_op_names_of_the_earlier_system_are_aliases(alias: str, name: str) -> None:
    assert alias in OPS[name].aliases


def test_signatures_and_specs_need_no_torch() -> None:
    code = "import sys, phyai.ops; [o.fact_specs() for o in phyai.ops.CORE_OPS]; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("op", CORE_OPS, ids=lambda op: op.name)
def test_the_doc_states_the_mathematics_and_its_source(op: Op) -> None:
    assert "::" in op.doc or "As the op" in op.doc
    assert "Source" in op.doc or op.composite or op.name in ("kv_write", "rms_norm_add")
    assert op.doc == importlib.import_module(f"phyai.ops.{op.name}.signature").__doc__


@pytest.mark.parametrize("op", CORE_OPS, ids=lambda op: op.name)
def test_every_dimension_is_declared_and_used(op: Op) -> None:
    used = {name for tensor in op.tensors for name in dim_names(tensor)}
    assert {dim.name for dim in op.dims} == used


@pytest.mark.parametrize("op", CORE_OPS, ids=lambda op: op.name)
def test_batch_and_length_dimensions_are_dynamic_and_sizes_are_not(op: Op) -> None:
    dynamic = {"M", "T", "B", "R", "Sq", "Sk", "S", "P", "entries", "L", "L_out", "H", "W", "H_out", "W_out", "T_out"}
    assert {dim.name for dim in op.dims if dim.dynamic} == {dim.name for dim in op.dims} & dynamic


@pytest.mark.parametrize("op", CORE_OPS, ids=lambda op: op.name)
def test_attribute_defaults_are_allowed_values(op: Op) -> None:
    for attr in op.attributes:
        assert attr.default is None or attr.values is None or attr.default in attr.values
        assert attr.doc


@pytest.mark.parametrize(("op", "spec"), SPECS)
def test_a_spec_gives_every_dimension_of_the_tensors_it_has(op: Op, spec: ArgSpec) -> None:
    given = {"x": "bf16"} if op.inputs[0].name == "x" else {op.inputs[0].name: op.inputs[0].dtypes[0]}
    present = fill_dtypes(op, {**given, **spec.dtypes}, spec.present)
    tensors = [t for t in op.tensors if t.name in present and (not t.optional or t.name in spec.present)]
    shapes = {t.name: tuple(dim_size(dim, spec.dims) for dim in t.dims) for t in tensors}
    assert bind_dims(tensors, shapes) == {name: spec.dims[name] for t in tensors for name in dim_names(t)}


@pytest.mark.parametrize(("op", "spec"), SPECS)
def test_a_spec_yields_facts_that_its_op_declares(op: Op, spec: ArgSpec) -> None:
    vocabulary = op_vocabulary(op)
    dtypes = {name: dtype for name, dtype in spec.dtypes.items() if not _absent(op, spec, name)}
    dtypes = dtypes or {next(t.name for t in op.tensors if "bf16" in t.dtypes): "bf16"}
    if op.name == "embedding" or op.inputs[0].name not in dtypes:
        dtypes = {next(t.name for t in op.tensors if "bf16" in t.dtypes): "bf16", **dtypes}
    facts = call_facts(op, dims=spec.dims, dtypes=dtypes, attrs=spec.attrs, present=spec.present, extra=spec.facts)
    for name, value in facts.items():
        declared = vocabulary.find(name)
        assert declared is not None, name
        if declared.kind is FactKind.NUMBER:
            assert isinstance(value, int | float)
            assert value >= declared.minimum
        elif declared.kind is FactKind.FLAG:
            assert isinstance(value, bool)
        elif declared.values is not None:
            assert value in declared.values


def _absent(op: Op, spec: ArgSpec, name: str) -> bool:
    return any(t.name == name and t.optional for t in op.tensors) and name not in spec.present


@pytest.mark.parametrize("op", CORE_OPS, ids=lambda op: op.name)
def test_specs_have_real_and_small_shapes(op: Op) -> None:
    names = [spec.name for spec in op.arg_specs]
    assert len(names) == len(set(names))
    real = [spec for spec in op.arg_specs if not spec.name.startswith("small.")]
    assert real
    assert len(real) < len(names)
    assert all({"model.family", "role"} <= set(spec.facts) for spec in real if "model.family" in spec.facts)
    assert all("model.family" not in spec.facts for spec in op.arg_specs if spec not in real)


def test_sizes_of_the_models() -> None:
    """π0.5 and Cosmos3-Nano, as their public configurations give them."""
    assert (VISION.qkv, VISION.attention) == (3456, 1152)
    assert (PREFIX.qkv, PREFIX.attention) == (2560, 2048)
    assert (EXPERT.qkv, EXPERT.attention) == (2560, 2048)
    assert COSMOS3.qkv == 6144
    assert PREFIX_TOKENS == 3 * 256 + 200


def test_a_norm_says_whether_it_has_a_bias() -> None:
    facts = call_facts(OPS["layer_norm"], dims={"D": 8}, dtypes={"x": "bf16", "bias": "fp32"}, present=("bias",))
    assert facts["attrs.bias"] is True
    assert facts["dtype.bias"] == "fp32"
    assert call_facts(OPS["layer_norm"], dims={}, dtypes={"x": "bf16"})["attrs.bias"] is False


def test_a_norm_of_heads_says_how_many() -> None:
    facts = call_facts(OPS["layer_norm"], dims={}, dtypes={"x": "bf16"}, extra={"shape.heads": 16})
    assert facts["shape.heads"] == 16
    assert op_vocabulary(OPS["layer_norm"]).find("shape.heads") is not None


def test_attention_derives_its_group_and_whether_it_is_square() -> None:
    dims = {"heads": 8, "kv_heads": 2, "head_dim": 64, "Sq": 5, "Sk": 7}
    facts = call_facts(OPS["attention"], dims=dims, dtypes={"q": "bf16"})
    assert facts["shape.group"] == 4
    assert facts["attrs.square"] is False
    assert call_facts(OPS["attention"], dims={**dims, "Sk": 5}, dtypes={"q": "bf16"})["attrs.square"] is True
    unknown = call_facts(OPS["attention"], dims={"heads": 8}, dtypes={"q": "bf16"})
    assert "shape.group" not in unknown
    assert "attrs.square" not in unknown


@pytest.mark.parametrize(("op", "gated"), [("activation", False), ("gated_activation", True)])
def test_activations_say_whether_they_are_gated(op: str, gated: bool) -> None:
    facts = call_facts(OPS[op], dims={}, dtypes={"x": "bf16"}, attrs={"activation": "gelu"})
    assert facts["attrs.gated"] is gated
    assert facts["attrs.activation"] == "gelu"


@pytest.mark.parametrize("op", [op for op in CORE_OPS if op.composite], ids=lambda op: op.name)
def test_parts_map_to_what_both_ops_have(op: Op) -> None:
    for part in op.parts:
        weights = {t.name for t in OPS[part.op].weights}
        assert set(part.weights) <= weights
        assert set(part.weights.values()) <= {t.name for t in op.weights}
        assert set(part.dims) <= {d.name for d in OPS[part.op].dims}
        assert set(part.attrs) <= {a.name for a in OPS[part.op].attributes}
        assert part.parts == OPS[part.op].parts
