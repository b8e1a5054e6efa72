"""The parts of the conformance kit: cases, the space of calls that a kernel claims, memory, packers, declarations."""

from __future__ import annotations

import json
import subprocess
import sys

import attrs
import pytest
from phyai.environment import Environment
from phyai.errors import PhyAIError
from phyai.ops import CORE_OPS
from phyai.predicates import match

torch = pytest.importorskip("torch", reason="the kit compares tensors")
pytest.importorskip("phyai_backend_reference", reason="the kit compares with the reference")
pytest.importorskip("hypothesis", reason="the kit draws calls with it")

import faulty_backend as faulty  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from phyai.quant.formats import QuantFormat  # noqa: E402
from phyai.quant.realize import dequantize  # noqa: E402
from phyai.quant.realize.bits import pack_bits, unpack_bits  # noqa: E402
from phyai.quant.scheme import QuantScheme, TensorQuant  # noqa: E402
from phyai.testing import Outcome  # noqa: E402
from phyai.testing.case import Case  # noqa: E402
from phyai.testing.compare import mismatch, tolerance_of  # noqa: E402
from phyai.testing.conformance import checks_named, kernels_of  # noqa: E402
from phyai.testing.declaration import light_import  # noqa: E402
from phyai.testing.draw import canonical, corners, drawn  # noqa: E402
from phyai.testing.kit import examine_call  # noqa: E402
from phyai.testing.memory import move, place, same_bits, unwritten  # noqa: E402
from phyai.testing.packers import examine_format, round_trip  # noqa: E402

CPU = Environment.detect("cpu", libraries=())
OPS = {op.name: op for op in CORE_OPS}
GEMM = faulty.subject(faulty.gemm())


# Cases


@pytest.mark.parametrize("op", CORE_OPS, ids=lambda op: op.name)
def test_a_case_of_every_argument_spec_reads_back_from_its_json(op):
    for spec in op.arg_specs:
        case = attrs.evolve(Case.of(op, spec), memory="rows", seed=3).fitted(op)
        assert Case.from_json(op, json.loads(json.dumps(case.to_json(op)))) == case


def test_a_case_with_a_scheme_reads_back_from_its_json():
    weight = TensorQuant("fp8_e4m3", "block", block_shape=(128, 64))
    scheme = QuantScheme(weight, TensorQuant("fp8_e4m3", "group", group_size=64, dynamic=True))
    case = Case.of(OPS["gemm"], OPS["gemm"].arg_specs[-1]).quantized(OPS["gemm"], scheme, "plain")
    assert Case.from_json(OPS["gemm"], json.loads(json.dumps(case.to_json(OPS["gemm"])))) == case


@pytest.mark.parametrize(
    "data",
    [
        7, {}, {"dims": {"M": 1, "N": 1, "K": 1}}, {"dims": {"M": -1, "N": 1, "K": 1}, "dtypes": "bf16"},
        {"dims": {"M": 1, "N": 1, "K": 1, "Q": 1}, "dtypes": "bf16"},
        {"dims": {"M": 1, "N": 1, "K": 1}, "dtypes": "bf17"},
        {"dims": {"M": 1, "N": 1, "K": 1}, "dtypes": "bf16", "memory": "upside down"},
        {"dims": {"M": 1, "N": 1, "K": 1}, "dtypes": "bf16", "scheme": {"weight": {"dtype": "int4"}}},
        {"dims": {"M": 1, "N": 1, "K": 1}, "dtypes": "bf16", "surprise": 1},
    ],
)  # fmt: skip
def test_json_that_describes_no_call_is_refused(data):
    with pytest.raises(PhyAIError):
        Case.from_json(OPS["gemm"], data)


@pytest.mark.parametrize("op", [op for op in CORE_OPS if op.fit], ids=lambda op: op.name)
def test_the_argument_specs_of_an_op_fit_as_they_are(op):
    for spec in op.arg_specs:
        fitted = op.fit(spec)
        assert fitted.dims == spec.dims, spec.name
        assert set(fitted.present) == set(spec.present), spec.name


# Calls that are claimed


@settings(max_examples=60, deadline=None)
@given(case=drawn(GEMM))
def test_every_drawn_call_is_claimed(case):
    facts = GEMM.space.facts(case)
    assert GEMM.kernel.when.holds(facts)
    assert facts["shape.K"] % 16 == 0
    assert facts["shape.N"] <= 512


def test_the_corners_have_both_ends_every_modulus_and_every_dtype():
    cases = list(corners(GEMM, canonical(GEMM)))
    sizes = {name: {case.dims[name] for case in cases} for name in "MNK"}
    assert 0 in sizes["M"]
    assert {1, 511, 512} <= sizes["N"]
    assert {16, 32, 48, 80} <= sizes["K"]
    assert {case.dtypes["x"] for case in cases} == {"bf16", "fp32"}
    assert {case.memory for case in cases} == {"dense", "offset", "rows", "transposed", "strided"}
    assert {case.lead for case in cases} >= {None, (2, 3), ()}
    assert any("bias" in case.present for case in cases)
    assert len(cases) == len({json.dumps(case.to_json(GEMM.op), sort_keys=True) for case in cases})


@pytest.mark.parametrize(
    ("op", "when", "fact", "value"),
    [
        ("attention", {"shape.group": 1}, "shape.group", 1),
        ("attention", {"attrs.square": True, "attrs.layout": "padded"}, "attrs.square", True),
        ("attention", {"attrs.layout": "ragged"}, "dtype.cu_seqlens_q", "int32"),
        ("gemm", {"shape.K": "%48", "all_of": [{"shape.K": ">=100"}]}, "shape.K", 144),
        ("gemm", {"role": "expert"}, "role", "expert"),
        ("gemm", {"any_of": [{"device.type": "cuda"}, {"dtype.x": "fp16"}]}, "dtype.x", "fp16"),
        ("gemm", {"quant.weight": "int4", "quant.group_size": 48, "quant.activation": None}, "quant.group_size", 48),
        ("gemm", {"none_of": [{"dtype.x": ["bf16", "fp32", "fp64"]}]}, "dtype.x", "fp16"),
    ],
)
def test_a_call_is_found_that_a_narrow_capability_accepts(op, when, fact, value):
    record = attrs.evolve(faulty.rms_norm(), id=f"faulty.{op}", op=op, when=match(when))
    subject = faulty.subject(record)
    assert subject.space.facts(canonical(subject))[fact] == value


def test_every_quantized_weight_of_a_composite_op_is_drawn():
    both = {f"parts.{part}.quant.weight": "fp8_e4m3" for part in ("gate_up", "down")}
    record = attrs.evolve(
        faulty.rms_norm(), id="faulty.gated_mlp", op="gated_mlp", when=match({**both, "dtype.x": "bf16"})
    )
    subject = faulty.subject(record)
    call = subject.call(canonical(subject))
    assert {name: weight.scheme.weight.dtype for name, weight in call.weights.items()} == {
        "gate_up": "fp8_e4m3", "down": "fp8_e4m3"
    }  # fmt: skip
    plain = {name: dequantize(weight).double() for name, weight in call.weights.items()}
    gate, up = (call.inputs["x"].double() @ plain["gate_up"].T).chunk(2, -1)
    want = (torch.nn.functional.gelu(gate, approximate="tanh") * up) @ plain["down"].T
    assert mismatch("y", subject.wanted(call)[0], want, tolerance_of(subject.op, "y", {"y": "bf16"})) is None


def test_a_call_that_is_not_claimed_is_refused_with_the_reason():
    case = Case.from_json(GEMM.op, {"dims": {"M": 1, "N": 1, "K": 17}, "dtypes": "bf16"})
    with pytest.raises(PhyAIError, match=r"does not claim this call: shape.K=17 is not a multiple of 16"):
        examine_call(GEMM, case)


def test_an_op_that_nothing_says_the_truth_of_cannot_be_tested():
    from phyai.catalog import Catalog
    from phyai.plugins import Plugin, PluginStatus
    from phyai.testing.conformance import subject_of

    record = faulty.rms_norm()
    catalog = Catalog.build([Plugin(PluginStatus("faulty"), kernels=(record,))])
    subject = subject_of(record, catalog, CPU)
    with pytest.raises(PhyAIError, match="install phyai-backend-reference"):
        subject.wanted(subject.call(canonical(subject)))


def test_unknown_backends_kernels_and_checks_are_named():
    with pytest.raises(PhyAIError, match=r"no kernel of 'faulty' matches 'faulty.gem'"):
        kernels_of("faulty", GEMM.catalog, ["faulty.gem"])
    with pytest.raises(PhyAIError, match="no check 'vlaues'"):
        checks_named(["vlaues"])


# Memory and comparison


@pytest.mark.parametrize("memory", ["dense", "offset", "rows", "transposed", "strided"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (2, 3, 4), (0, 4), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int32, torch.bool])
def test_a_tensor_moved_to_other_memory_keeps_its_values(memory, shape, dtype):
    tensor = (torch.arange(max(1, torch.Size(shape).numel()))[: torch.Size(shape).numel()].reshape(shape) % 2).to(dtype)
    assert same_bits(move(tensor, memory), tensor)


@pytest.mark.parametrize("memory", ["dense", "offset", "rows", "transposed", "strided"])
def test_a_write_outside_a_tensor_is_seen_and_one_inside_is_not(memory):
    placed = place((3, 4), torch.float32, "cpu", memory)
    placed.tensor.fill_(1)
    assert not placed.overrun()
    assert not unwritten(placed.tensor).any()
    placed.storage[-1] = 0
    assert placed.overrun()


def test_poison_is_told_from_a_nan_that_was_computed():
    placed = place((2, 2), torch.bfloat16, "cpu", "dense")
    placed.tensor[0, 0] = torch.tensor(0.0) / 0
    assert unwritten(placed.tensor).tolist() == [[False, True], [True, True]]


def test_a_result_is_held_to_what_its_call_can_give():
    gemm = OPS["gemm"]
    assert tolerance_of(gemm, "y", {"x": "fp64", "weight": "fp64", "y": "fp64"}) == gemm.tolerance["fp64"]
    mixed = tolerance_of(gemm, "y", {"x": "fp32", "weight": "fp64", "y": "fp64"})
    assert mixed == gemm.tolerance["fp32"]
    through = tolerance_of(gemm, "y", {"x": "bf16", "weight": "fp32", "y": "fp32"}, through=["x"])
    assert through == gemm.tolerance["bf16"]


def test_a_mismatch_says_where_and_by_how_much():
    tolerance = OPS["gemm"].tolerance["fp32"]
    got = torch.tensor([[1.0, 2.0], [3.0, 4.5]])
    words = mismatch("y", got, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), tolerance)
    assert words.startswith("y[1, 1] is 4.5, the reference says 4 (1 of 4 elements are outside")
    assert mismatch("y", got, got.double(), tolerance) is None
    assert "shape" in mismatch("y", got, torch.zeros(3), tolerance)
    assert mismatch("y", torch.tensor([torch.nan]), torch.ones(1), tolerance) is not None


# Packers


def columns(fault=None, when=None):
    """4-bit codes packed by columns; a fault drops what is left over at an odd number of outputs."""

    def pack(weight):
        patterns = unpack_bits(weight.codes, 4, weight.shape[1]).T.contiguous()
        if fault == "odd sizes" and patterns.shape[1] % 2:
            patterns = torch.cat([patterns[:, :-1], patterns[:, :1]], dim=1)
        if fault == "changes the weight":
            weight.scale.mul_(2)
        layout = "another" if fault == "another layout" else "columns"
        return attrs.evolve(weight, layout=layout, codes=None, packed={"codes": pack_bits(patterns, 4)})

    def unpack(weight):
        patterns = unpack_bits(weight.packed["codes"], 4, weight.shape[0]).T.contiguous()
        zero_point = None if fault == "forgets zero points" else weight.zero_point
        return attrs.evolve(weight, layout="plain", codes=pack_bits(patterns, 4), packed={}, zero_point=zero_point)

    return QuantFormat("faulty.columns", "columns", match(when or {"quant.weight": ["int4", "uint4"]}), pack, unpack)


def examined(record):
    return examine_format(record, GEMM.catalog, CPU, seconds=3.0, calls=20).checks[0]


def test_a_right_packer_passes_for_many_schemes_and_sizes():
    check = examined(columns())
    assert check.outcome is Outcome.PASSED, check.reason
    assert check.calls >= 50


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("odd sizes", "codes is not what was packed"),
        ("changes the weight", "pack changes the weight that it is given: scale"),
        ("another layout", "pack gives the layout 'another'; the format declares 'columns'"),
        ("forgets zero points", "has the tensors codes, scale"),
    ],
)
def test_a_wrong_packer_is_found(fault, words):
    check = examined(columns(fault))
    assert check.outcome is Outcome.FAILED
    assert words in check.reason


def test_packing_is_wrong_at_odd_sizes_only():
    scheme = QuantScheme(TensorQuant("int4", "channel"))
    assert round_trip(columns("odd sizes"), scheme, 6, 5) is None
    assert round_trip(columns("odd sizes"), scheme, 7, 5) == "codes is not what was packed"


def test_a_format_that_claims_no_scheme_fails_and_one_for_another_device_is_skipped():
    never = examined(columns(when={"quant.weight": "int4", "all_of": [{"quant.weight": "int8"}]}))
    elsewhere = examined(columns(when={"quant.weight": "int4", "device.arch": ">=sm90"}))
    assert (never.outcome, elsewhere.outcome) == (Outcome.FAILED, Outcome.SKIPPED)


# Declarations


def test_a_module_that_imports_something_heavy_when_it_is_listed_is_found(tmp_path, monkeypatch):
    (tmp_path / "heavy_plugin.py").write_text("import torch\ndef phyai_kernels():\n    return []\n")
    (tmp_path / "lazy_plugin.py").write_text("def phyai_kernels():\n    import numpy\n    return []\n")
    (tmp_path / "light_plugin.py").write_text("import phyai.kernel\ndef phyai_kernels():\n    return []\n")
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('no')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "imports numpy" in light_import("lazy_plugin").reason  # a hook that imports is as heavy as a module
    heavy = light_import("heavy_plugin")
    assert heavy.outcome is Outcome.FAILED
    assert "torch" in heavy.reason
    assert light_import("light_plugin").outcome is Outcome.PASSED
    assert "RuntimeError: no" in light_import("broken_plugin").reason


def test_the_pytest_plugin_is_light_where_no_backend_is_asked_for():
    code = "import sys, phyai.testing.pytest_plugin; print('torch' in sys.modules, 'hypothesis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False"]


@given(st.sampled_from(["int4", "uint4"]), st.integers(1, 40), st.integers(1, 70))
@settings(max_examples=40, deadline=None)
def test_any_size_survives_the_right_packer(dtype, n, k):
    assert round_trip(columns(), QuantScheme(TensorQuant(dtype, "group", group_size=32)), n, k) is None
