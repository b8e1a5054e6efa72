"""What a description says of itself: names, facts, scale shapes, element values."""

import pytest
from phyai.errors import DeclarationError
from phyai.facts import CORE_FACTS, FactKind, Vocabulary
from phyai.quant import QuantScheme, TensorQuant
from phyai.quant.elements import ELEMENT_NAMES, element
from phyai.quant.scheme import MXFP4, MXFP4_INPUT, MXFP8, MXFP8_INPUT, NVFP4, NVFP4_INPUT

W4 = TensorQuant("int4", "group", group_size=128)
FP8 = TensorQuant("fp8_e4m3", "block", block_shape=(128, 128))
TOKEN = TensorQuant("int8", "token", dynamic=True)


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        (QuantScheme(W4), "w4a16_g128"),
        (QuantScheme(W4, TOKEN), "w4a8_g128"),
        (QuantScheme(W4, TensorQuant("fp8_e4m3", "token", dynamic=True)), "w4a8fp_g128"),
        (QuantScheme(TensorQuant("uint4", "group", group_size=64, zero_point="int")), "w4a16_g64_zp"),
        (QuantScheme(TensorQuant("int4", "group", group_size=32, g_idx=True)), "w4a16_g32_gidx"),
        (QuantScheme(TensorQuant("int8", "channel"), TensorQuant("int8", "tensor")), "w8a8_channel_static"),
        (QuantScheme(FP8, TensorQuant("fp8_e4m3", "group", group_size=128, dynamic=True)), "fp8_a8_block128x128"),
        (QuantScheme(NVFP4), "nvfp4_a16"),
        (QuantScheme(NVFP4, NVFP4_INPUT), "nvfp4_a4"),
        (QuantScheme(MXFP4, MXFP4_INPUT), "mxfp4_a4"),
        (QuantScheme(MXFP4, MXFP8_INPUT), "mxfp4_a8"),
        (QuantScheme(MXFP8, MXFP8_INPUT), "mxfp8_a8"),
    ],
)
def test_names(scheme, name):
    assert scheme.name == name
    assert scheme.facts()["quant.scheme"] == name


@pytest.mark.parametrize("scheme", [QuantScheme(W4), QuantScheme(FP8, TOKEN, TOKEN), QuantScheme(NVFP4, NVFP4_INPUT)])
def test_facts_are_declared_and_of_their_kind(scheme):
    vocabulary = Vocabulary(CORE_FACTS)
    types = {FactKind.NAME: str, FactKind.NUMBER: int, FactKind.FLAG: bool}
    for name, value in scheme.facts().items():
        spec = vocabulary.find(name)
        assert spec is not None, name
        assert type(value) is types[spec.kind], name
        assert spec.values is None or value in spec.values, name


def test_facts_of_groups_and_blocks():
    facts = QuantScheme(W4).facts()
    assert (facts["quant.granularity"], facts["quant.block_n"], facts["quant.block_k"]) == ("group", 1, 128)
    assert (facts["quant.weight"], facts["quant.symmetric"], "quant.activation" in facts) == ("int4", True, False)
    facts = QuantScheme(FP8).facts()
    assert (facts["quant.block_n"], facts["quant.block_k"], "quant.group_size" in facts) == (128, 128, False)


@pytest.mark.parametrize(
    ("quant", "shape"),
    [
        (TensorQuant("int8", "tensor"), (1, 1)),
        (TensorQuant("int8", "channel"), (208, 1)),
        (W4, (208, 2)),
        (FP8, (2, 2)),
    ],
)
def test_scale_shapes_cover_short_edges(quant, shape):
    assert quant.scale_shape(208, 160) == shape


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "int9", "granularity": "channel"},
        {"dtype": "int8", "granularity": "row"},
        {"dtype": "int8", "granularity": "group"},
        {"dtype": "int8", "granularity": "channel", "group_size": 32},
        {"dtype": "int8", "granularity": "group", "group_size": 0},
        {"dtype": "int8", "granularity": "block"},
        {"dtype": "int8", "granularity": "channel", "g_idx": True},
        {"dtype": "fp8_e4m3", "granularity": "channel", "zero_point": "int"},
        {"dtype": "int8", "granularity": "channel", "zero_point": "half"},
        {"dtype": "int8", "granularity": "channel", "scale_dtype": "int8"},
    ],
)
def test_descriptions_that_cannot_be_are_refused(fields):
    with pytest.raises(DeclarationError):
        TensorQuant(**fields)


def test_values_of_narrow_floats():
    # OCP Microscaling Formats 1.0, tables of the element types
    assert element("fp4_e2m1").values == (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    assert element("fp6_e2m3").values[:9] == (0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1)
    assert (element("fp6_e2m3").values[-1], element("fp6_e3m2").values[-1]) == (7.5, 28)
    assert element("fp6_e3m2").values[1] == 0.0625


@pytest.mark.parametrize("name", [n for n in ELEMENT_NAMES if n.startswith(("fp4", "fp6"))])
def test_narrow_floats_are_ordered_and_end_at_their_maximum(name):
    values = element(name).values
    assert list(values) == sorted(set(values))
    assert values[-1] == element(name).maximum
