"""Quantization of inputs in Triton's interpreter, against the core's own, code for code."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("triton", reason="triton is not installed")

CODE = """
import torch
from phyai.quant.realize.quantize import quantize_input
from phyai.quant.scheme import TensorQuant
from phyai_backend_humming.activation import Rounding, quantize

torch.manual_seed(0)
x = torch.randn(5, 256).bfloat16()
x[1] = 0
x[2] *= 1e-6
x[3, 7] = 300
for quant in (
    TensorQuant("int8", "token", dynamic=True),
    TensorQuant("int8", "token", dynamic=True, scale_rule="full_range"),
    TensorQuant("fp8_e4m3", "token", dynamic=True),
    TensorQuant("fp8_e4m3", "token", dynamic=True, scale_rule="inverse"),
    TensorQuant("fp8_e4m3", "group", group_size=128, dynamic=True),
    TensorQuant("int8", "tensor"),
    TensorQuant("fp8_e4m3", "tensor"),
    TensorQuant("int4", "token", dynamic=True),
    TensorQuant("int4", "token", dynamic=True, scale_rule="full_range"),
    TensorQuant("int4", "token", dynamic=True, scale_rule="inverse"),
    TensorQuant("int4", "tensor"),
):
    rounding, size = Rounding.of(quant), quant.group_size or 256
    static = None if quant.dynamic else torch.tensor([0.021])
    # the interpreter's own cast to fp8 loses a carry into the exponent: there the kernel gives what it would cast
    codes = torch.empty(5, 256) if quant.dtype == "fp8_e4m3" else rounding.empty(x)
    scales = torch.empty(5, 256 // size)
    quantize(x, size, rounding, codes, scales, static)
    want = quantize_input(x.float(), quant, None if static is None else static[0])
    if quant.dtype == "int4":  # two to a byte, the first in its low half, two's complement
        assert codes.shape == (5, 128)
        nibbles = torch.stack([codes & 15, codes >> 4], -1).flatten(1).int()
        codes = torch.where(nibbles > 7, nibbles - 16, nibbles)
    else:
        codes = codes.to(rounding.dtype)
    assert torch.equal(codes.float(), want.values), quant
    if quant.dynamic:
        torch.testing.assert_close(scales, want.scale, rtol=2e-7, atol=0)  # a last bit in 1 / factor

from phyai_backend_humming.activation import prepare
run = prepare({"attrs.format": "int8", "attrs.granularity": "token"}, {}, {}, None).run
codes, scales = run(x.view(1, 5, 256))
amax = x.float().abs().amax(1, keepdim=True)
want = torch.where(amax == 0, 1, amax / 127)
assert torch.equal(scales, want.view(1, 5, 1))
assert torch.equal(codes.float().view(5, 256), (x.float() / want).clamp(-127, 127).round())
assert run(x[:0])[0].shape == (0, 256)

# what a row does with its inputs is what the op does
from phyai.quant.scheme import QuantScheme
from phyai.quant.weight import QuantizedWeight
from phyai_backend_humming.gemm import quantizer, static_scales
inside = quantizer(TensorQuant("int8", "token", dynamic=True), 256)(x)
assert torch.equal(inside[0], codes[0]) and torch.equal(inside[1], scales[0])
static = prepare({"attrs.format": "int8", "attrs.granularity": "tensor"}, {}, {}, None).run(x, torch.tensor([0.021]))
given = QuantScheme(TensorQuant("int8", "channel"), TensorQuant("int8", "tensor"))
weight = QuantizedWeight(given, (64, 256), input_scale=torch.tensor(0.021))
inside = quantizer(given.input, 256, static_scales(weight))(x)
assert torch.equal(inside[0].clamp(min=-127), static[0])  # a scheme's int8 has one code more than the op's
assert torch.equal(inside[1], static[1])
packed, each = quantizer(TensorQuant("int4", "token", dynamic=True), 256)(x)
assert packed.dtype == torch.uint8 and packed.shape == (5, 128) and each.shape == (5, 1)
out = torch.zeros(5, 256, dtype=torch.int8), torch.zeros(5, 1)
assert run(x, out=out) is out and torch.equal(out[0], codes[0])
print("equal")
"""


def test_codes_and_scales_equal_the_cores() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CODE)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.strip() == "equal", done.stderr
