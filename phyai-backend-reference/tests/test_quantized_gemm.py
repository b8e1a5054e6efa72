"""The quantized rows against the definition, computed element by element in float64."""

import math

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.facts import Facts
from phyai.quant import QuantScheme, TensorQuant
from phyai.quant.realize import dequantize, quantize_weight
from phyai.quant.realize.quantize import quantize_input
from phyai.quant.scheme import MXFP4, MXFP4_INPUT, MXFP8_INPUT, NVFP4, NVFP4_INPUT
from phyai_backend_reference.quantized.rows import KERNELS

WEIGHTS = [
    TensorQuant("int8", "tensor"),
    TensorQuant("int8", "channel", zero_point="int"),
    TensorQuant("int4", "group", group_size=24),
    TensorQuant("uint4", "group", group_size=32, zero_point="int"),
    TensorQuant("int6", "block", block_shape=(4, 32)),
    TensorQuant("int5", "group", group_size=16, zero_point="float"),
    TensorQuant("fp8_e4m3", "block", block_shape=(16, 32)),
    TensorQuant("fp8_e5m2", "channel"),
    TensorQuant("fp6_e3m2", "group", group_size=16),
    MXFP4,
    NVFP4,
]
INPUTS = [
    None,
    TensorQuant("int8", "token", dynamic=True),
    TensorQuant("int8", "token", dynamic=True, zero_point="int"),
    TensorQuant("int4", "group", group_size=16, dynamic=True),
    TensorQuant("int8", "tensor", dynamic=True, scale_rule="full_range"),
    TensorQuant("fp8_e4m3", "token", dynamic=True),
    TensorQuant("fp8_e4m3", "group", group_size=32, dynamic=True),
    MXFP4_INPUT,
    MXFP8_INPUT,
    NVFP4_INPUT,
]


def row(weight, **facts):
    """The one row that holds for a weight, as a resolver would find it."""
    call = Facts({**weight.facts(), "op": "gemm", "device.type": "cpu", "dtype.x": "fp32", "dtype.y": "fp32", **facts})
    (kernel,) = [k for k in KERNELS if k.when.holds(call)]
    return kernel, call


def run(weight, x, bias=None, dtype="fp32"):
    kernel, facts = row(weight, **{"dtype.y": dtype})
    return kernel.load()(facts, {"weight": weight, "bias": bias}, {}, None).run(x)


def quantized(quant, inputs=None, n=24, k=72, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return quantize_weight(torch.randn(n, k, generator=generator), QuantScheme(quant, inputs))


@pytest.mark.parametrize("inputs", INPUTS, ids=lambda q: "a16" if q is None else f"{q.format}-{q.granularity}")
@pytest.mark.parametrize("quant", WEIGHTS, ids=lambda q: f"{q.format}-{q.granularity}")
def test_every_pair_of_descriptions_has_one_row_and_its_product(quant, inputs):
    weight = quantized(quant, inputs)
    x = torch.randn(2, 5, 72, generator=torch.Generator().manual_seed(1)) * 3
    rows = x.reshape(10, 72)
    if inputs is not None:
        rows = quantize_input(rows, inputs).dequantized()
    expected = (rows.double() @ dequantize(weight).double().T).reshape(2, 5, 24)
    assert torch.allclose(run(weight, x).double(), expected, rtol=1e-4, atol=1e-4)


def by_hand(x, inputs):
    """One row's symmetric quantization, number by number."""
    top = {"int8": 127, "int4": 7, "fp8_e4m3": 448}[inputs.dtype]
    amax = max(abs(v) for v in x)
    scale = amax / top if amax else 1.0
    out = []
    for v in x:
        q = max(-top - (inputs.dtype != "fp8_e4m3"), min(top, v / scale))
        if inputs.dtype == "fp8_e4m3":
            step = 2.0 ** (max(math.frexp(q)[1] - 1, -6) - 3)
            q = round(q / step) * step
        else:
            q = round(q)
        out.append(q * scale)
    return out


@pytest.mark.parametrize("dtype", ["int8", "int4", "fp8_e4m3"])
def test_tokens_are_quantized_as_the_definition_says(dtype):
    inputs = TensorQuant(dtype, "token", dynamic=True)
    x = torch.randn(7, 33, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    x[2] = 0
    got = quantize_input(x, inputs).dequantized()
    expected = torch.tensor([by_hand(r, inputs) for r in x.tolist()], dtype=torch.float64)
    assert torch.allclose(got, expected, rtol=1e-12, atol=0)


def test_integer_products_are_summed_exactly():
    codes = torch.full((1, 4096), 127, dtype=torch.int8)
    scheme = QuantScheme(TensorQuant("int8", "channel"), TensorQuant("int8", "tensor"))
    weight = attrs.evolve(
        quantized(TensorQuant("int8", "channel"), n=1, k=4096), scheme=scheme, codes=codes,
        scale=torch.ones(1, 1), input_scale=torch.tensor(1.0),
    )  # fmt: skip
    x = torch.full((1, 4096), 127.0, dtype=torch.float64)
    x[0, 0] = 126
    y = run(weight, x, dtype="fp64")
    assert y.item() == 127 * 127 * 4095 + 127 * 126  # float32 sums would lose the last digits
    assert row(weight)[0].id == "reference.gemm.integer"


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_inputs_grouped_by_an_index(n, k, seed):
    generator = torch.Generator().manual_seed(seed)
    quant = TensorQuant("int4", "group", group_size=8, zero_point="int", g_idx=True)
    groups = quant.groups(k)
    base = quantize_weight(
        torch.randn(n, k, generator=generator),
        QuantScheme(TensorQuant("int4", "group", group_size=8, zero_point="int")),
    )
    g_idx = torch.randint(0, groups, (k,), generator=generator).to(torch.int32)
    inputs = TensorQuant("int8", "token", dynamic=True)
    x = torch.randn(3, k, generator=generator)
    for scheme in (QuantScheme(quant), QuantScheme(quant, inputs)):
        weight = attrs.evolve(base, scheme=scheme, g_idx=g_idx)
        rows = x if scheme.input is None else quantize_input(x, inputs).dequantized()
        expected = rows.double() @ dequantize(weight).double().T
        assert torch.allclose(run(weight, x).double(), expected, rtol=1e-4, atol=1e-5)


def test_static_scales_saturate():
    scheme = QuantScheme(TensorQuant("fp8_e4m3", "tensor"), TensorQuant("fp8_e4m3", "tensor"))
    weight = attrs.evolve(quantized(TensorQuant("fp8_e4m3", "tensor")), scheme=scheme, input_scale=torch.tensor(0.01))
    x = torch.full((1, 72), 100.0)
    expected = torch.full((1, 72), 4.48, dtype=torch.float64) @ dequantize(weight).double().T
    assert torch.allclose(run(weight, x).double(), expected, rtol=1e-5)


def test_the_input_is_scaled_first_and_the_bias_added_last():
    weight = attrs.evolve(quantized(TensorQuant("int8", "channel")), pre_scale=torch.arange(72).to(torch.bfloat16))
    x, bias = torch.randn(3, 72), torch.randn(24)
    expected = (x.double() * weight.pre_scale.double()) @ dequantize(weight).double().T + bias.double()
    assert torch.allclose(run(weight, x, bias).double(), expected, rtol=1e-4, atol=1e-3)


def test_a_quantized_output_is_rounded():
    quant = TensorQuant("int8", "channel")
    weight = quantized(quant)
    output = TensorQuant("int8", "tensor")
    rounded = attrs.evolve(weight, scheme=QuantScheme(quant, None, output), output_scale=torch.tensor(0.5))
    x = torch.randn(3, 72)
    assert torch.equal(run(rounded, x), (run(weight, x) / 0.5).clamp(-128, 127).round() * 0.5)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp64"])
def test_outputs_have_the_asked_dtype(dtype):
    torch_dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}[dtype]
    assert run(quantized(WEIGHTS[2]), torch.randn(2, 72).to(torch_dtype), dtype=dtype).dtype == torch_dtype


def test_no_rows_at_all():
    for inputs in INPUTS:
        assert run(quantized(WEIGHTS[0], inputs), torch.zeros(0, 72)).shape == (0, 24)


def test_new_weights_are_taken_in_place():
    old, new = quantized(WEIGHTS[2], seed=1), quantized(WEIGHTS[2], seed=2)
    kernel, facts = row(old)
    prepared = kernel.load()(facts, {"weight": old}, {}, None)
    prepared.refresh({"weight": new})
    x = torch.randn(2, 72)
    assert torch.equal(prepared.run(x), run(new, x))


def test_other_layouts_are_not_read():
    weight = attrs.evolve(quantized(WEIGHTS[0]), layout="humming")
    facts = Facts({**weight.facts(), "op": "gemm", "device.type": "cpu"})
    assert not any(k.when.holds(facts) for k in KERNELS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
@pytest.mark.parametrize("inputs", INPUTS[:3] + INPUTS[-2:], ids=lambda q: "a16" if q is None else q.format)
@pytest.mark.parametrize("quant", WEIGHTS, ids=lambda q: f"{q.format}-{q.granularity}")
def test_a_gpu_computes_the_same_also_inside_a_graph(quant, inputs):
    weight = quantized(quant, inputs)
    x = torch.randn(5, 72, generator=torch.Generator().manual_seed(1))
    expected = run(weight, x)
    kernel, facts = row(weight, **{"device.type": "cuda"})
    call = kernel.load()(facts, {"weight": weight.to("cuda"), "bias": None}, {}, None).run
    there = x.cuda()
    assert torch.allclose(call(there).cpu(), expected, rtol=1e-3, atol=1e-3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call(there)
    graph.replay()
    assert torch.allclose(y.cpu(), expected, rtol=1e-3, atol=1e-3)
