"""The first product of a gated feed-forward block and its activation in one launch, and what rests on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from machine import Resources, normal
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.quant.realize import dequantize
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.testing.quantized import quantized_weight
from phyai_backend_cuda.records.quantized import KERNELS

FUSED = next(kernel for kernel in KERNELS if kernel.id == "cuda.gated_mlp.fp8_a8_fused")
H200 = Environment.simulated("h200", libraries=()).facts().replace({"lib.triton": "3.6.0", "lib.cupy": "14.2.0"})
SCHEME = QuantScheme(TensorQuant("fp8_e4m3", "channel"), TensorQuant("fp8_e4m3", "token", dynamic=True))
#: h is rounded to bf16, of sums with 14 bits, and exact in what it is compared with: with a relative error of e = 2^-8
#: some of its values get the other of two codes, and the results err by sqrt(e / 8) (phyai.testing.compare says why).
FLIPPED = (2**-8 / 8) ** 0.5
FUNCTIONS: Mapping[str, Any] = {
    "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}  # fmt: skip
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]


def facts(**changes: Any) -> Facts:
    dims = {"shape.M": 968, "shape.K": 2048, "shape.I": 16384, "shape.N": 2048}
    parts = {f"parts.{part}.{n}": v for part in ("gate_up", "down") for n, v in SCHEME.facts().items()}
    layouts = {f"parts.{part}.quant.layout": "plain" for part in ("gate_up", "down")}
    call = {"op": "gated_mlp", "dtype.x": "bf16", "dtype.y": "bf16", "attrs.activation": "gelu_tanh"}
    return Facts({**H200, **call, **dims, **parts, **layouts, **changes})


def test_it_takes_the_prefix_of_pi05() -> None:
    assert FUSED.when.holds(facts())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"shape.M": 50}, "shape.M"), ({"shape.I": 4304}, "shape.I"), ({"device.arch": "sm100"}, "device.arch"),
        ({"lib.cupy": None}, "cupy"), ({"lib.triton": None}, "triton"), ({"dtype.x": "fp16"}, "dtype.x"),
        ({"parts.gate_up.quant.layout": "humming"}, "parts.gate_up.quant.layout"),
        ({"parts.gate_up.quant.activation": None}, "parts.gate_up.quant.activation"),
        ({"parts.down.quant.weight": "int8"}, "parts.down.quant.weight"),
    ],
)  # fmt: skip
def test_it_says_what_it_cannot_take(changes: dict[str, Any], word: str) -> None:
    assert word in (FUSED.when.why_not(facts().replace(changes)) or "")


def test_accumulating_fast_it_is_nobodys_default() -> None:
    others = [kernel for kernel in KERNELS if kernel.op == "gated_mlp" and kernel is not FUSED]
    assert FUSED.numerics.accumulation != "fp32"
    assert all(FUSED.rank < kernel.rank for kernel in others)


def narrow(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 codes of ``t`` and the scale of each row."""
    scale = t.float().abs().amax(1) / 448
    return (t.float() / scale[:, None]).to(torch.float8_e4m3fn), scale


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


class TestOnHopper:
    pytestmark = gpu

    @pytest.mark.parametrize("activation", FUNCTIONS)
    @pytest.mark.parametrize(
        ("rows", "width", "k"), [(256, 128, 128), (1, 128, 64), (300, 384, 160), (1500, 2176, 1152), (968, 1024, 2048)]
    )
    def test_one_launch_equals_product_and_activation(self, rows: int, width: int, k: int, activation: str) -> None:
        from phyai_backend_cuda.gated.product import GatedProduct

        (x, scales), (w, column) = narrow(normal(rows, k)), narrow(normal(2 * width, k, seed=1) / k**0.5)
        wide = [t.double() * s.double()[:, None] for t, s in ((x, scales), (w, column))]
        gate, up = (wide[0] @ wide[1].T).chunk(2, -1)
        want = FUNCTIONS[activation](gate) * up
        around = torch.full((rows + 2, width + 64), torch.nan, dtype=torch.bfloat16, device="cuda")
        h = around[1:-1, 32 : 32 + width]
        product = GatedProduct(w, column, activation, torch.cuda.get_device_properties(0).multi_processor_count)
        product(x, scales, h)
        assert relative(h, want) < 5e-3
        first = h.clone()
        product(x, scales, h)
        assert torch.equal(first, h)
        h.fill_(torch.nan)
        assert bool(around.isnan().all()), "it writes outside its result"

    @pytest.mark.parametrize("rows", [300, 7])
    def test_codes_under_a_given_scale(self, rows: int) -> None:
        from phyai_backend_cuda.gated.product import GatedProduct

        (x, scales), (w, column) = narrow(normal(rows, 256)), narrow(normal(512, 256, seed=1) / 16)
        scale = torch.tensor([0.01], device="cuda")
        h = torch.empty(rows, 256, dtype=torch.bfloat16, device="cuda")
        codes = torch.zeros(rows, 256, dtype=torch.float8_e4m3fn, device="cuda")
        GatedProduct(w, column, "gelu_tanh", 132)(x, scales, h)
        GatedProduct(w, column, "gelu_tanh", 132, scale)(x, scales, codes)
        want = (h.float() * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn)
        assert torch.equal(codes.view(torch.uint8), want.view(torch.uint8))
        assert int((want.float().abs() == 448).sum()) > 0

    def test_the_block_equals_its_parts_and_is_captured(self) -> None:
        rows, k, width = 300, 256, 512
        weights = {
            "gate_up": quantized_weight(normal(2 * width, k, seed=1).float().cpu() / 16, SCHEME).to("cuda"),
            "down": quantized_weight(normal(k, width, seed=2).float().cpu() / 16, SCHEME).to("cuda"),
        }
        prepared = FUSED.load()(facts(), weights, {}, Resources())  # type: ignore[arg-type]
        x = normal(rows, k)

        def want(x: torch.Tensor) -> torch.Tensor:
            gate, up = (coded(x) @ dequantize(weights["gate_up"]).double().T).chunk(2, -1)
            return coded(FUNCTIONS["gelu_tanh"](gate) * up) @ dequantize(weights["down"]).double().T

        assert relative(prepared.run(x), want(x)) < FLIPPED
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = prepared.run(x)
        x.copy_(normal(rows, k, seed=9))
        graph.replay()
        assert relative(y, want(x)) < FLIPPED
        assert prepared.refresh is not None
        prepared.refresh(
            {
                "gate_up": quantized_weight(normal(2 * width, k, seed=5).float().cpu() / 16, SCHEME).to("cuda"),
                "down": quantized_weight(normal(k, width, seed=6).float().cpu() / 16, SCHEME).to("cuda"),
            }
        )
        graph.replay()
        assert relative(y, want(x)) < FLIPPED


def coded(x: torch.Tensor) -> torch.Tensor:
    """What the FP8 codes of x, one scale per row, stand for."""
    scale = x.float().abs().amax(1, keepdim=True) / 448
    return (x.float() / scale).to(torch.float8_e4m3fn).double() * scale.double()
