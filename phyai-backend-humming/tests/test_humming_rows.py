"""The predicates against the library's own configuration, heuristics and code generation, on GPUs that are not here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import attrs
import pytest
import torch
from phyai.kernel import Kernel
from phyai.quant.scheme import MXFP4, MXFP8, NVFP4, QuantScheme, TensorQuant
from phyai_backend_humming.rows import ARCHS, KERNELS

from .humming_calls import facts
from .simulated_humming import simulated

pytest.importorskip("humming", reason="humming-kernels is not installed")

ROWS: Mapping[str, Kernel] = {k.id.removeprefix("humming.gemm."): k for k in KERNELS if k.op == "gemm"}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TOKEN_FP8 = TensorQuant("fp8_e4m3", "token", dynamic=True)
TOKEN_INT8 = TensorQuant("int8", "token", dynamic=True)
STATIC_FP8 = TensorQuant("fp8_e4m3", "tensor")
STATIC_INT8 = TensorQuant("int8", "tensor")
TOKEN_INT4 = TensorQuant("int4", "token", dynamic=True)
STATIC_INT4 = TensorQuant("int4", "tensor")
GROUP_FP8 = TensorQuant("fp8_e4m3", "group", group_size=128, dynamic=True)
INPUTS = (None, TOKEN_FP8, TOKEN_INT8, STATIC_FP8, STATIC_INT8, GROUP_FP8, TOKEN_INT4, STATIC_INT4)
#: π0.5's and π0's sizes where tiles do not divide them, a small one, and large ones.
SHAPES = ((4304, 1152), (1152, 4304), (1024, 32), (32, 1024), (8, 16), (32768, 2048))
M = (1, 50, 256, 4096)


def weights(dtype: str) -> Iterator[TensorQuant]:
    for element in ("int4", "int8", "fp8_e4m3"):
        for zero_point in (None, "int") if element != "fp8_e4m3" else (None,):
            yield TensorQuant(element, "channel", scale_dtype=dtype, zero_point=zero_point)
            for group in (16, 32, 64, 128):
                yield TensorQuant(element, "group", group_size=group, scale_dtype=dtype, zero_point=zero_point)
        yield TensorQuant(element, "tensor")
    for block in itertools.product((64, 128), repeat=2):
        yield TensorQuant("fp8_e4m3", "block", block_shape=block)
    yield from (MXFP4, MXFP8, NVFP4)


def accepting(scheme: QuantScheme, n: int, k: int, sm: int, dtype: str) -> list[str]:
    call = facts(scheme, n, k, device=f"sm{sm}", dtype=dtype)
    return [name for name, kernel in ROWS.items() if kernel.when.holds(call)]


def objection(
    scheme: QuantScheme, n: int, k: int, dtype: str, *, invariant: bool, rows: tuple[int, ...] = M
) -> str | None:
    """What the library says against a layer: None when it generates code for every number of rows."""
    from humming.kernel.humming import HummingKernel
    from phyai_backend_humming.convert import layer_config
    from phyai_backend_humming.schedules import specifications, unique

    try:
        config = layer_config(scheme, n, k, DTYPES[dtype], 0)
        for spec in unique([s for s, _ in specifications(config, rows, invariant=invariant, device=0)]).values():
            HummingKernel(**spec)
    except (AssertionError, ValueError, KeyError, RuntimeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("sm", [int(arch[2:]) for arch in ARCHS])
def test_what_a_row_takes_the_library_generates_code_for(sm: int) -> None:
    taken = set()
    with simulated(sm):
        for turn, (dtype, given) in enumerate(itertools.product(DTYPES, INPUTS)):
            for step, weight in enumerate(weights(dtype)):
                n, k = SHAPES[(turn + step) % len(SHAPES)]
                scheme = QuantScheme(weight, given)
                for row in accepting(scheme, n, k, sm, dtype):
                    taken.add(row)
                    wrong = objection(scheme, n, k, dtype, invariant="invariant" in row)
                    assert wrong is None, f"{row} takes {scheme.name} [{n}, {k}] {dtype}: {wrong}"
    assert {"w4a16", "w4a16_batch_invariant"} <= taken
    assert ("fp8_a8" in taken) == (sm >= 89)
    assert ("int4_a4" in taken) == (80 <= sm <= 89)


#: Where a row says no for another reason than that the library cannot: exact e8m0 scales need bf16; quantized inputs
#: by group go with blocks of 128; zero points of weights as wide as their inputs, which the library's own schema
#: refuses; int4 inputs where no tensor core multiplies them.
def _stricter(scheme: QuantScheme, dtype: str, sm: int) -> bool:
    weight, given = scheme.weight, scheme.input
    if weight.format in ("mxfp4", "mxfp8") and dtype == "fp16":
        return True
    if given is None:
        return False
    if given.dtype == "int4" and sm not in (80, 86, 87, 89):  # emulated, or without Triton
        return True
    return (
        given.granularity == "group"
        or (given.dtype == "int8" and (weight.format == "mxfp4" or (weight.dtype == "int8" and not weight.symmetric)))
        or (given.dtype == "int4" and not weight.symmetric)
        or weight.format == "mxfp8"
    )


@pytest.mark.parametrize("sm", [75, 80, 89, 90, 100, 120])
def test_what_every_row_refuses_the_library_refuses(sm: int) -> None:
    with simulated(sm):
        for dtype, given in itertools.product(DTYPES, INPUTS):
            if given is not None and sm == 75:
                continue  # Triton, which quantizes the inputs, begins at sm80
            for weight in weights(dtype):
                scheme = QuantScheme(weight, given)
                if accepting(scheme, 4096, 4096, sm, dtype) or _stricter(scheme, dtype, sm):
                    continue
                refused = objection(scheme, 4096, 4096, dtype, invariant=False, rows=(1, 50, 968))
                assert refused is not None, f"{scheme.name} {dtype} is refused, but the library takes it"


@pytest.mark.parametrize(
    ("row", "scheme"),
    [
        ("w4a16", QuantScheme(TensorQuant("int4", "group", group_size=128, scale_dtype="bf16"))),
        ("w8a16", QuantScheme(TensorQuant("int8", "channel", scale_dtype="bf16"))),
        ("fp8_a16", QuantScheme(TensorQuant("fp8_e4m3", "channel", scale_dtype="bf16"))),
        ("mxfp4_a16", QuantScheme(MXFP4)),
        ("nvfp4_a16", QuantScheme(NVFP4)),
        ("fp8_a8", QuantScheme(TensorQuant("fp8_e4m3", "channel", scale_dtype="bf16"), TOKEN_FP8)),
        ("int8_a8", QuantScheme(TensorQuant("int8", "channel", scale_dtype="bf16"), TOKEN_INT8)),
        ("int4_a8_fp8", QuantScheme(TensorQuant("int4", "group", group_size=128, scale_dtype="bf16"), TOKEN_FP8)),
        ("int4_a8_int8", QuantScheme(TensorQuant("int4", "group", group_size=128, scale_dtype="bf16"), TOKEN_INT8)),
        ("mxfp4_a8", QuantScheme(MXFP4, TOKEN_FP8)),
    ],
)
def test_every_projection_of_the_models_has_its_row(row: str, scheme: QuantScheme) -> None:
    from .humming_calls import GEMM

    with simulated(90):
        for spec in GEMM.arg_specs:
            if spec.name.startswith("small.") or spec.dtypes["x"] != "bf16":
                continue
            n, k = spec.dims["N"], spec.dims["K"]
            assert accepting(scheme, n, k, 90, "bf16") == [row, f"{row}_batch_invariant"], spec.name
            assert objection(scheme, n, k, "bf16", invariant=False, rows=(spec.dims["M"],)) is None, spec.name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lib.humming": None}, "lib.humming"),
        ({"lib.humming": "0.1.19"}, "0.1.20"),
        ({"shape.N": 4300}, "multiple of 8"),
        ({"shape.K": 4300}, "multiple of 8"),
        ({"quant.scale_dtype": "fp32"}, "quant.scale_dtype"),
        ({"dtype.x": "fp32"}, "dtype.x"),
        ({"quant.g_idx": True}, "quant.g_idx=true is not false"),
        ({"quant.pre_scale": True}, "quant.pre_scale=true is not false"),
        ({"quant.zero_point": "float"}, "quant.zero_point=float is not int"),
        ({"quant.second_scale": True}, "quant.second_scale=true is not false"),
        ({"quant.fields.output": "int8"}, "quant.fields.output"),
    ],
)
def test_a_refusal_says_why(changes: dict[str, object], words: str) -> None:
    scheme = QuantScheme(TensorQuant("int4", "group", group_size=128, scale_dtype="bf16"))
    reason = ROWS["w4a16"].when.why_not(facts(scheme, 4096, 4096).replace(changes))
    assert reason is not None
    assert words in reason


def test_scales_in_another_16_bit_type_than_the_inputs_are_refused() -> None:
    scheme = QuantScheme(TensorQuant("int4", "group", group_size=128, scale_dtype="fp16"))
    assert ROWS["w4a16"].when.holds(facts(scheme, 4096, 4096, dtype="fp16"))
    assert not ROWS["w4a16"].when.holds(facts(scheme, 4096, 4096, dtype="bf16"))


def test_stream_k_is_not_reproducible_and_the_other_variant_is() -> None:
    for name, kernel in ROWS.items():
        assert kernel.numerics.reproducible == name.endswith("batch_invariant")
        assert kernel.numerics.batch_invariant == name.endswith("batch_invariant")


def test_batch_invariant_kernels_do_not_split_the_sum() -> None:
    from phyai_backend_humming.convert import layer_config
    from phyai_backend_humming.schedules import INVARIANT_ROWS, specifications

    scheme = QuantScheme(TensorQuant("int4", "group", group_size=128, scale_dtype="bf16"))
    with simulated(90):
        config = layer_config(scheme, 2560, 1024, torch.bfloat16, 0)
        ((spec, _),) = specifications(config, INVARIANT_ROWS, invariant=True, device=0)
        ((other, _),) = specifications(config, (64,), invariant=False, device=0)
    assert not spec["use_stream_k"]
    assert spec["use_batch_invariant"]
    assert other["use_stream_k"]


@pytest.mark.parametrize("given", [TOKEN_INT8, TOKEN_INT4], ids=lambda q: q.dtype)
def test_scales_of_groups_beside_integer_inputs_stay_floats(given: TensorQuant) -> None:
    # the library can round them to 1024 steps of the largest: a group of zeros has scale 1, the others would be lost
    from phyai_backend_humming.convert import layer_config

    scheme = QuantScheme(TensorQuant("int4", "group", group_size=128, scale_dtype="bf16"), given)
    with simulated(89):
        assert not layer_config(scheme, 2560, 1024, torch.bfloat16, 0, real=False).use_int_weight_scale


def test_mx_inputs_are_not_taken_for_plain_ones() -> None:
    scheme = QuantScheme(MXFP4, attrs.evolve(MXFP8, dynamic=True))
    assert accepting(scheme, 4096, 4096, 90, "bf16") == []


@pytest.mark.parametrize("row", ["int4_a8_int8", "mxfp4_a8"])
def test_the_conformance_kit_finds_calls_of_rows_with_quantized_inputs(row: str) -> None:
    from phyai.environment import Environment
    from phyai.plugins import discover
    from phyai.testing.draw import canonical
    from phyai.testing.subject import Subject, about

    environment = Environment.simulated("h200", libraries={"humming": "0.1.20", "triton": "3.6.0", "torch": "2.11.0"})
    case = canonical(Subject(ROWS[row], about(ROWS[row], discover()), environment))
    assert case is not None
    assert case.layout == "humming"
