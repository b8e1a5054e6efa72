"""Rounding to nearest: errors of at most half a step, scale types, and the cases that are documented."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.errors import CheckpointError
from phyai.quant import QuantScheme, TensorQuant
from phyai.quant.elements import element
from phyai.quant.realize import dequantize, quantize_weight
from phyai.quant.scheme import MXFP4, MXFP6_E2M3, MXFP8, NVFP4

torch = pytest.importorskip("torch")

INTEGERS = st.sampled_from([f"int{b}" for b in range(2, 9)])
SCALES = st.sampled_from(["fp32", "bf16", "fp16"])


@st.composite
def quants(draw):
    granularity = draw(st.sampled_from(["tensor", "channel", "group", "block"]))
    group = draw(st.sampled_from([1, 3, 16, 64])) if granularity == "group" else None
    block = draw(st.sampled_from([(2, 5), (16, 16)])) if granularity == "block" else None
    zero = draw(st.sampled_from([None, "int", "float"]))
    rule = draw(st.sampled_from(["amax", "full_range"]))
    return TensorQuant(
        draw(INTEGERS), granularity, group, block, zero_point=zero, scale_dtype=draw(SCALES), scale_rule=rule
    )


def weight(n, k, seed, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, k, generator=generator) * torch.exp(spread * torch.randn(n, 1, generator=generator))


def per_element(weight_):
    """The step of every element: its scale, over the whole weight."""
    from phyai.quant.realize.dequantize import effective_scale, spread

    quant, (n, k) = weight_.scheme.weight, weight_.shape
    return spread(effective_scale(weight_), quant, n, k, weight_.g_idx).expand(n, k)


@given(quants(), st.integers(1, 20), st.integers(1, 70), st.integers(0, 50))
@settings(max_examples=120, deadline=None)
def test_integer_errors_are_at_most_half_a_step(quant, n, k, seed):
    w = weight(n, k, seed)
    quantized = quantize_weight(w, QuantScheme(quant))
    step = per_element(quantized)
    assert ((dequantize(quantized) - w).abs() <= 0.50001 * step + 1e-7).all()


@given(st.sampled_from(["fp8_e4m3", "fp8_e5m2", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1"]), st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_float_errors_are_at_most_half_the_gap_between_neighbours(dtype, seed):
    w = weight(5, 40, seed)
    quantized = quantize_weight(w, QuantScheme(TensorQuant(dtype, "group", group_size=16)))
    info, step = element(dtype), per_element(quantized)
    scaled = (w / step).abs()
    exponent = torch.frexp(scaled)[1] - 1
    gap = torch.exp2(exponent.clamp(min=1 - info.bias).float() - info.mantissa)
    assert ((dequantize(quantized) - w).abs() <= 0.5001 * gap * step).all()


@pytest.mark.parametrize("quant", [MXFP4, MXFP6_E2M3, MXFP8, NVFP4], ids=lambda q: q.format)
def test_microscaling_formats_are_as_close_as_their_precision_allows(quant):
    w = weight(32, 128, 3)
    error = (dequantize(quantize_weight(w, QuantScheme(quant))) - w).norm() / w.norm()
    bound = {"mxfp4": 0.14, "mxfp6_e2m3": 0.04, "mxfp8": 0.03, "nvfp4": 0.11}[quant.format]
    assert bound / 3 < error < bound


@pytest.mark.parametrize("dtype", ["int4", "int3", "fp4_e2m1", "int8"])
def test_least_squares_is_never_worse_in_any_group(dtype):
    scheme = QuantScheme(TensorQuant(dtype, "group", group_size=32))
    w = weight(16, 96, 5)
    errors = [
        (dequantize(quantize_weight(w, scheme, method=m)) - w).square().reshape(16, 3, 32).sum(-1)
        for m in ("rtn", "rtn_mse")
    ]
    assert (errors[1] <= errors[0]).all()
    assert dtype == "int8" or errors[1].sum() < errors[0].sum()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_floating_dtype_is_quantized_as_its_float32_value(dtype):
    w = weight(8, 64, 1, spread=0.1).to(dtype)
    scheme = QuantScheme(TensorQuant("int4", "group", group_size=32))
    assert torch.equal(dequantize(quantize_weight(w, scheme)), dequantize(quantize_weight(w.float(), scheme)))


@pytest.mark.parametrize(
    "quant", [TensorQuant("int4", "group", group_size=32), MXFP4, NVFP4, MXFP8], ids=lambda q: q.format
)
def test_groups_of_zeros_stay_zero(quant):
    w = weight(4, 64, 2)
    w[1] = 0
    w[2, :32] = 0
    got = dequantize(quantize_weight(w, QuantScheme(quant)))
    assert (got[1] == 0).all()
    assert (got[2, :32] == 0).all()
    assert (dequantize(quantize_weight(torch.zeros(4, 64), QuantScheme(quant))) == 0).all()


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_no_code_stands_for_is_refused(value):
    w = torch.ones(4, 32)
    w[2, 3] = value
    with pytest.raises(CheckpointError, match="infinity or a NaN"):
        quantize_weight(w, QuantScheme(TensorQuant("int8", "channel")))


@pytest.mark.parametrize("scale_dtype", ["fp32", "bf16", "fp16"])
def test_subnormal_groups_round_to_at_most_half_a_step(scale_dtype):
    w = torch.full((2, 8), 1e-42)
    quantized = quantize_weight(w, QuantScheme(TensorQuant("int8", "channel", scale_dtype=scale_dtype)))
    assert (quantized.scale > 0).all()
    assert ((dequantize(quantized) - w).abs() <= 0.5 * quantized.scale.float()).all()


def test_schemes_that_need_calibration_are_refused():
    static = QuantScheme(TensorQuant("int8", "channel"), TensorQuant("int8", "tensor"))
    with pytest.raises(CheckpointError, match="calibration"):
        quantize_weight(torch.ones(4, 4), static)


def test_power_of_two_scales_by_rule():
    from phyai.quant.realize.quantize import power_of_two

    info = element("fp4_e2m1")
    amax = torch.tensor([4.0, 6.0, 6.99, 7.0, 8.0, 1.0, 0.0])
    assert power_of_two(amax, info, "mx_floor").tolist() == [0, 0, 0, 0, 1, -2, -127]
    assert power_of_two(amax, info, "mx_ceil").tolist() == [0, 0, 1, 1, 1, -2, -127]
    assert power_of_two(amax, info, "mx_even").tolist() == [0, 0, 0, 1, 1, -2, -127]
