"""The layout: exact both ways, and the bits where the library reads them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.errors import CheckpointError
from phyai.quant.realize.codes import code_patterns
from phyai.quant.scheme import MXFP4, NVFP4, QuantScheme, TensorQuant
from phyai.testing.packers import round_trip
from phyai.testing.quantized import quantized_weight
from phyai_backend_humming.layout import columns, pack, unpack
from phyai_backend_humming.rows import FORMAT

ELEMENTS = ("int4", "uint4", "int8", "uint8", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1")


def schemes() -> st.SearchStrategy[QuantScheme]:
    def build(dtype: str, granularity: str, group: int, zero: bool) -> QuantScheme:
        zero_point = "int" if zero and not dtype.startswith("fp") and granularity in ("channel", "group") else None
        extra = {"group": {"group_size": group}, "block": {"block_shape": (64, group)}}.get(granularity, {})
        return QuantScheme(TensorQuant(dtype, granularity, zero_point=zero_point, **extra))

    return st.builds(
        build, st.sampled_from(ELEMENTS), st.sampled_from(("tensor", "channel", "group", "block")),
        st.sampled_from((16, 32, 128)), st.booleans(),
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(schemes(), st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_unpacking_gives_what_was_packed(scheme: QuantScheme, n: int, k8: int, seed: int) -> None:
    assert round_trip(FORMAT, scheme, n, 8 * k8, seed=seed) is None


@pytest.mark.parametrize("scheme", [QuantScheme(MXFP4), QuantScheme(NVFP4)], ids=lambda s: s.name)
def test_named_formats_round_trip_at_siglips_odd_width(scheme: QuantScheme) -> None:
    assert round_trip(FORMAT, scheme, 24, 4304) is None


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_words_are_a_bit_stream_of_offset_binary_integers_and_raw_floats(dtype: str) -> None:
    plain = quantized_weight(torch.randn(3, 40), QuantScheme(TensorQuant(dtype, "group", group_size=32)))
    bits = plain.scheme.weight.bits
    words = pack(plain).packed["weight"]
    assert words.dtype == torch.int32
    assert words.shape == (3, 64 * bits // 32)
    patterns = code_patterns(plain.codes.view(torch.uint8), dtype, 40) if bits == 4 else plain.codes.view(torch.uint8)
    for n in range(3):
        stream = sum((int(word) & 0xFFFFFFFF) << (32 * i) for i, word in enumerate(words[n]))
        for k in range(64):
            code = (stream >> (k * bits)) & ((1 << bits) - 1)
            pattern = int(patterns[n, k]) if k < 40 else 0
            assert code == (pattern ^ (1 << (bits - 1)) if dtype.startswith("int") else pattern)


def test_k_is_filled_up_to_whole_groups() -> None:
    assert columns(TensorQuant("int4", "group", group_size=128), 4304) == 4352
    assert columns(NVFP4, 4304) == 4304
    assert columns(TensorQuant("fp8_e4m3", "block", block_shape=(128, 128)), 32) == 128


def test_scales_and_zero_points_stay_as_they_are() -> None:
    plain = quantized_weight(torch.randn(8, 64), QuantScheme(TensorQuant("uint4", "channel", zero_point="int")))
    packed = pack(plain)
    assert packed.scale is plain.scale
    assert packed.zero_point is plain.zero_point
    assert packed.facts()["quant.layout"] == "humming"


def test_widths_that_are_no_multiple_of_8_are_refused() -> None:
    plain = quantized_weight(torch.randn(4, 12), QuantScheme(TensorQuant("int4", "channel")))
    with pytest.raises(CheckpointError, match="K=12"):
        pack(plain)


def test_a_weight_that_was_arranged_says_why_it_cannot_be_unpacked() -> None:
    packed = pack(quantized_weight(torch.randn(4, 16), QuantScheme(TensorQuant("int4", "channel"))))
    packed.packed.clear()
    with pytest.raises(CheckpointError, match="arranged for one GPU"):
        unpack(packed)
