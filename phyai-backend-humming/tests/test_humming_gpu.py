"""Every row on a GPU with the library, against the reference in float64."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from phyai.dispatch.resources import EngineResources
from phyai.environment import Environment
from phyai.kernel import Kernel
from phyai.quant.realize.dequantize import dequantize
from phyai.quant.realize.quantize import quantize_input
from phyai.quant.scheme import MXFP4, NVFP4, QuantScheme, TensorQuant
from phyai.testing.quantized import quantized_weight
from phyai_backend_humming.layout import pack
from phyai_backend_humming.plugin import phyai_libraries
from phyai_backend_humming.rows import KERNELS

from .humming_calls import facts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
ROWS: Mapping[str, Kernel] = {k.id.removeprefix("humming.gemm."): k for k in KERNELS if k.op == "gemm"}
TOKEN_FP8 = TensorQuant("fp8_e4m3", "token", dynamic=True)
TOKEN_INT8 = TensorQuant("int8", "token", dynamic=True)
GROUPED = TensorQuant("int4", "group", group_size=128, scale_dtype="bf16")
SCHEMES = {
    "w4a16": QuantScheme(TensorQuant("int4", "group", group_size=128, scale_dtype="bf16", zero_point="int")),
    "w8a16": QuantScheme(TensorQuant("int8", "channel", scale_dtype="bf16")),
    "fp8_a16": QuantScheme(TensorQuant("fp8_e4m3", "block", block_shape=(128, 128))),
    "mxfp4_a16": QuantScheme(MXFP4),
    "nvfp4_a16": QuantScheme(NVFP4),
    "fp8_a8": QuantScheme(TensorQuant("fp8_e4m3", "channel", scale_dtype="bf16"), TOKEN_FP8),
    "int8_a8": QuantScheme(TensorQuant("int8", "channel", scale_dtype="bf16"), TOKEN_INT8),
    "int4_a8_fp8": QuantScheme(GROUPED, TOKEN_FP8),
    "int4_a8_int8": QuantScheme(GROUPED, TOKEN_INT8),
    "mxfp4_a8": QuantScheme(MXFP4, TOKEN_FP8),
}


@pytest.mark.parametrize("variant", ["", "_batch_invariant"])
@pytest.mark.parametrize("row", SCHEMES)
@pytest.mark.parametrize(("n", "k"), [(256, 512), (136, 4304)])
def test_products_are_the_references(row: str, variant: str, n: int, k: int) -> None:
    pytest.importorskip("humming", reason="humming-kernels is not installed")
    environment, kernel, scheme = (
        Environment.detect("cuda", libraries=phyai_libraries()),
        ROWS[row + variant],
        SCHEMES[row],
    )
    call = facts(scheme, n, k, m=None, bias=True).replace(dict(environment.facts()))
    if (reason := kernel.when.why_not(call)) is not None:
        pytest.skip(reason)
    plain = quantized_weight((torch.randn(n, k) / k**0.5).cuda(), scheme)
    bias = torch.randn(n, device="cuda").bfloat16()
    prepared = kernel.load()(
        call, {"weight": pack(plain), "bias": bias}, {"rows": [64]}, EngineResources(environment.device)
    )
    for m in (1, 50, 200):
        x = torch.randn(m, k, device="cuda").bfloat16()
        values = x.float() if scheme.input is None else quantize_input(x.float(), scheme.input).dequantized()
        want = values.double() @ dequantize(plain).double().T + bias.double()
        got = prepared.run(x).double()
        assert (got - want).norm() / want.norm() < (8e-3 if scheme.input is None else 2e-2)
