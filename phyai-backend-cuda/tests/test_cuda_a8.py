"""Norms, activations and products of 8 bits, FP8 and int8, as one block: against plain torch, and against its chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from machine import DEVICE, ON_GPU, Resources, normal
from phyai.composite import part_facts
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.kernel import Kernel, Prepared
from phyai.op import Op
from phyai.ops import CORE_OPS
from phyai.quant.realize.dequantize import dequantize
from phyai.quant.realize.quantize import quantize_input
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.quant.weight import QuantizedWeight
from phyai.testing.quantized import quantized_weight
from phyai_backend_cuda.records import KERNELS

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.usefixtures("correct_rounding")

BY_ID: Mapping[str, Kernel] = {kernel.id: kernel for kernel in KERNELS}
OPS: Mapping[str, Op] = {op.name: op for op in CORE_OPS}
H200 = Environment.simulated("h200", libraries=()).facts().replace({"lib.triton": "3.6.0"})
ELEMENTS = ["fp8_e4m3", "int8"]
GRANULARITIES = [
    ("channel", "token", True), ("channel", "tensor", False), ("channel", "tensor", True), ("tensor", "tensor", False),
    ("tensor", "tensor", True), ("tensor", "token", True),
]  # fmt: skip
NORM = {"attrs.eps": 1e-6, "attrs.offset": 1}
T, HEADS, KV_HEADS, HEAD_DIM, K = 5, 2, 1, 16, 32


def weight_of(n: int, k: int, element: str, how: tuple[str, str, bool], seed: int = 0) -> QuantizedWeight:
    granularity, activation, dynamic = how
    rule = "full_range" if element == "int8" and activation == "token" else "amax"
    given = TensorQuant(element, activation, dynamic=dynamic, scale_rule=rule)
    scheme = QuantScheme(TensorQuant(element, granularity), given)
    weight: QuantizedWeight = quantized_weight(normal(n, k, seed=seed).float().cpu() / k**0.5, scheme)
    return weight.to(DEVICE)


def quant(facts: Mapping[str, Any], **weights: QuantizedWeight) -> Facts:
    """Facts of a call, and of its quantized weights by what stands before theirs."""
    return Facts(
        {**H200, **facts, **{f"{head}{n}": v for head, weight in weights.items() for n, v in weight.facts().items()}}
    )


def product(x: torch.Tensor, weight: QuantizedWeight) -> torch.Tensor:
    """In float64, of inputs as their codes stand for them."""
    assert weight.scheme.input is not None
    held = quantize_input(x.float(), weight.scheme.input, weight.input_scale).dequantized()
    return held.double() @ dequantize(weight).double().T


def normed(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    total = x.double() + residual.double()
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * (1 + weight.double())


def block(x: torch.Tensor, gate_up: QuantizedWeight, down: QuantizedWeight) -> torch.Tensor:
    gate, up = product(x, gate_up).bfloat16().double().chunk(2, dim=-1)
    return product((torch.nn.functional.gelu(gate, approximate="tanh") * up).bfloat16(), down)


def close(got: torch.Tensor, want: torch.Tensor, limit: float = 3e-2) -> None:
    """As near as codes that may fall to either side allow."""
    assert float((got.double() - want).norm() / want.norm()) < limit


def prepare(id: str, facts: Facts, weights: Mapping[str, Any]) -> Prepared:
    assert BY_ID[id].when.why_not(facts) is None
    return BY_ID[id].load()(facts, weights, {}, Resources())


def mlp_facts(op: str, head: str, gate_up: QuantizedWeight, down: QuantizedWeight) -> Facts:
    tensors = dict.fromkeys(("x", "y", *(("residual", "norm_weight") if head else ())), "bf16")
    dims = {"M": T, "K": gate_up.shape[1], "I": down.shape[1], "N": down.shape[0]}
    call = {f"dtype.{n}": d for n, d in tensors.items()} | {f"shape.{n}": size for n, size in dims.items()}
    heads = {f"{head}parts.gate_up.": gate_up, f"{head}parts.down.": down}
    return quant({"op": op, "attrs.activation": "gelu_tanh", **(NORM if head else {}), **call}, **heads)


VARIANTS = [("fp8_a8", "fp8_e4m3"), ("fp8_a8_fast", "fp8_e4m3"), ("int8_a8", "int8")]


@pytest.mark.parametrize(("variant", "element"), VARIANTS)
@pytest.mark.parametrize("how", GRANULARITIES)
def test_a_gated_mlp_behind_a_norm(variant: str, element: str, how: tuple[str, str, bool]) -> None:
    gate_up, down = weight_of(96, K, element, how), weight_of(16, 48, element, how, seed=1)
    facts = mlp_facts("rms_norm_add_gated_mlp", "parts.block.", gate_up, down)
    weight, x, residual = normal(K, seed=2) / 8, normal(T, K, seed=3), normal(T, K, seed=4)
    weights = {"norm_weight": weight, "gate_up": gate_up, "down": down}
    prepared = prepare(f"cuda.rms_norm_add_gated_mlp.{variant}", facts, weights)
    sums, want = x.double() + residual.double(), block(normed(x, residual, weight).bfloat16(), gate_up, down)
    close(prepared.run(x, residual), want)
    torch.testing.assert_close(residual.double(), sums, rtol=2**-8, atol=0)
    wide = torch.zeros(T, 2 * K, dtype=torch.bfloat16, device=DEVICE)
    there, out = wide[:, ::2].copy_(normal(T, K, seed=4)), torch.empty(T, 16, dtype=torch.bfloat16, device=DEVICE)
    assert prepared.run(x.view(1, T, K), there.view(1, T, K), out=out.view(1, T, 16)).shape == (1, T, 16)
    close(out, want)
    torch.testing.assert_close(there.double(), sums, rtol=2**-8, atol=0)  # also where its elements lie apart
    new = {"gate_up": weight_of(96, K, element, how, seed=7), "down": weight_of(16, 48, element, how, seed=8)}
    assert prepared.refresh is not None
    prepared.refresh({"norm_weight": normal(K, seed=9) / 8, **new})
    residual = normal(T, K, seed=4)
    want = block(normed(x, residual, normal(K, seed=9) / 8).bfloat16(), new["gate_up"], new["down"])
    close(prepared.run(x, residual), want)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("how", GRANULARITIES)
def test_what_lies_between_is_what_the_chain_quantizes(element: str, how: tuple[str, str, bool]) -> None:
    """The same codes but for values at the border between two, and the same scales."""
    from phyai_backend_cuda.quantized.product import product_of

    weight, norm = weight_of(32, 48, element, how), normal(48, seed=2) / 8
    facts = Facts(weight.facts())
    held = product_of(weight, None, facts.under("quant"), Resources(), fast=True, options={})
    x, residual = normal(T, 48, seed=3), normal(T, 48, seed=4)
    fused, scales = held.normed(x, residual.clone(), norm, eps=1e-6, offset=1)
    apart = BY_ID["cuda.rms_norm_add"].load()(Facts(NORM), {"weight": norm}, {}, Resources()).run(x, residual.clone())
    codes, want = held.quantized(apart)
    torch.testing.assert_close(scales, want, rtol=2**-7, atol=0)
    differing = fused.float() != codes.float()
    assert differing.float().mean() < 0.05
    step = 1.0 if element == "int8" else codes.float().abs().clamp(min=2**-6) / 8
    assert ((fused.float() - codes.float()).abs() <= 2 * step).all()


@pytest.mark.parametrize("element", ELEMENTS)
def test_rows_next_to_zero_have_codes_that_are_numbers(element: str) -> None:
    """Where the inverse of a row's scale is beyond fp32."""
    from phyai_backend_cuda.quantized.product import product_of

    weight = weight_of(16, 32, element, ("channel", "token", True))
    held = product_of(weight, None, Facts(weight.facts()).under("quant"), Resources(), fast=True, options={})
    gate_up = torch.zeros(2, 64, dtype=torch.bfloat16, device=DEVICE)
    gate_up[:, ::4] = 2.0**-65
    gate_up[1] *= 2.0**65
    codes, scales = held.activated(gate_up, "silu", gated=True)
    assert codes.float().isfinite().all()
    values = codes.float() * scales[:, None]
    assert values[0].abs().max() < 1e-30
    want = torch.nn.functional.silu(gate_up[1, :32].float()) * gate_up[1, 32:].float()
    torch.testing.assert_close(values[1], want, rtol=0.1, atol=1e-2)


def qkv_facts(op: str, head: str, weight: QuantizedWeight, **more: Any) -> Facts:
    named = ("x", "k_cache", "v_cache", "q", *(("residual", "norm_weight") if head else ()))
    heads = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    dims = {**heads, "T": T, "K": K, "N": weight.shape[0], "pages": 2, "page_size": 4, "rotary_dim": HEAD_DIM}
    call = {f"dtype.{n}": "bf16" for n in named} | {f"shape.{n}": size for n, size in dims.items()}
    call |= {f"attrs.{n}": size for n, size in heads.items()} | {"attrs.style": "neox", "dtype.cos_sin": "fp32"}
    return quant({"op": op, **call, **(NORM if head else {}), **more}, **{f"{head}parts.qkv.": weight})


def rotated(x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, rotary: int) -> torch.Tensor:
    cos, sin = cos_sin.double()[positions].chunk(2, dim=-1)
    a, b, rest = x.double().split([rotary // 2, rotary // 2, x.shape[-1] - rotary], dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


@pytest.mark.parametrize(("variant", "element"), VARIANTS)
@pytest.mark.parametrize("how", GRANULARITIES)
@pytest.mark.parametrize(
    ("behind", "rotary", "biased"), [(True, HEAD_DIM, False), (False, HEAD_DIM // 2, False), (True, HEAD_DIM, True)]
)
def test_a_projection_with_rotation_and_cache(
    variant: str, element: str, how: tuple[str, str, bool], behind: bool, rotary: int, biased: bool
) -> None:
    n = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    weight, bias = weight_of(n, K, element, how), normal(n, seed=1) if biased else None
    op, head = ("rms_norm_add_qkv_rope_kv_write", "parts.block.") if behind else ("qkv_rope_kv_write", "")
    facts = qkv_facts(op, head, weight, **{"shape.rotary_dim": rotary}, **({"dtype.bias": "bf16"} if biased else {}))
    cos_sin = torch.randn(9, rotary, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    norm, x, residual = normal(K, seed=2) / 8, normal(T, K, seed=3), normal(T, K, seed=4)
    weights = {"weight": weight, "bias": bias, "cos_sin": cos_sin, **({"norm_weight": norm} if behind else {})}
    prepared = prepare(f"cuda.{op}.{variant}", facts, weights)
    positions, slots = torch.tensor([3, 1, 4, 0, 8], device=DEVICE), torch.tensor([6, 0, 7, 2, 5], device=DEVICE)
    caches = [torch.zeros(2, 4, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=DEVICE) for _ in "kv"]
    given = normed(x, residual, norm).bfloat16() if behind else x
    q = prepared.run(x, *((residual,) if behind else ()), positions, *caches, slots)
    want = product(given, weight) + (0 if bias is None else bias.double())
    qkv = want.view(T, HEADS + 2 * KV_HEADS, HEAD_DIM)
    close(q, rotated(qkv[:, :HEADS], positions, cos_sin, rotary), 2e-2)
    close(caches[0].view(8, 1, -1)[slots], rotated(qkv[:, HEADS : HEADS + 1], positions, cos_sin, rotary), 2e-2)
    close(caches[1].view(8, 1, -1)[slots], qkv[:, HEADS + 1 :], 2e-2)


@pytest.mark.parametrize("m", [1, 20, 130])
@pytest.mark.parametrize(("n", "k"), [(48, 64), (144, 176)])
@pytest.mark.parametrize("by_rows", [True, False])
def test_a_product_of_int8_codes_is_exact_up_to_its_rounding(m: int, n: int, k: int, by_rows: bool) -> None:
    from phyai_backend_cuda.quantized.int8 import int8_product

    generator = torch.Generator().manual_seed(m)
    x, w = (torch.randint(-127, 128, (r, k), generator=generator).to(DEVICE, torch.int8) for r in (m, n))
    row, column = (torch.rand(r if by_rows else 1, generator=generator).to(DEVICE) for r in (m, n))
    bias, y = normal(n), torch.empty(m, n, dtype=torch.bfloat16, device=DEVICE)
    int8_product(x, row, w, column, bias, y)
    want = x.double() @ w.double().T * row.double()[:, None] * column.double() + bias.double()
    torch.testing.assert_close(y.double(), want, rtol=2**-8, atol=1e-3)


def test_parts_of_a_block_behind_a_norm_are_those_of_the_block() -> None:
    how = ("channel", "token", True)
    gate_up, down = weight_of(96, K, "int8", how), weight_of(16, 48, "int8", how)
    whole = mlp_facts("rms_norm_add_gated_mlp", "parts.block.", gate_up, down)
    op = OPS["rms_norm_add_gated_mlp"]
    own = part_facts(op, op.parts[1], OPS["gated_mlp"], whole)
    assert BY_ID["cuda.gated_mlp.int8_a8"].when.why_not(own) is None


@pytest.mark.parametrize(
    ("id", "changes", "word"),
    [
        ("fp8_a8", {"dtype.norm_weight": "fp32"}, "norm_weight"),
        ("fp8_a8", {"parts.block.parts.down.quant.layout": "humming"}, "layout"),
        ("int8_a8", {"parts.block.parts.gate_up.quant.zero_point": "int"}, "zero_point"),
        ("int8_a8", {"parts.block.parts.gate_up.quant.weight": "fp8_e4m3"}, "fp8_e4m3"),
        ("fp8_a8_fast", {"device.arch": "sm86"}, "sm86"),
    ],
)  # fmt: skip
def test_what_a_block_behind_a_norm_cannot_do_is_refused(id: str, changes: dict[str, Any], word: str) -> None:
    element, how = ("int8" if id.startswith("int8") else "fp8_e4m3"), ("channel", "token", True)
    gate_up, down = weight_of(96, K, element, how), weight_of(16, 48, element, how)
    facts = mlp_facts("rms_norm_add_gated_mlp", "parts.block.", gate_up, down)
    kernel = BY_ID[f"cuda.rms_norm_add_gated_mlp.{id}"]
    assert kernel.when.why_not(facts) is None
    assert word in (kernel.when.why_not(facts.replace(changes)) or "")


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(("variant", "element"), VARIANTS)
def test_a_block_of_pi05_is_captured_and_replayed_with_new_inputs(variant: str, element: str) -> None:
    how = ("channel", "token", True)
    gate_up, down = weight_of(32768, 2048, element, how), weight_of(2048, 16384, element, how, seed=1)
    facts = mlp_facts("rms_norm_add_gated_mlp", "parts.block.", gate_up, down)
    weight, x, residual = normal(2048, seed=2) / 8, normal(968, 2048, seed=3), normal(968, 2048, seed=4)
    weights = {"norm_weight": weight, "gate_up": gate_up, "down": down}
    run = prepare(f"cuda.rms_norm_add_gated_mlp.{variant}", facts, weights).run
    run(x, residual)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(x, residual)
    x.copy_(normal(968, 2048, seed=5))
    residual.copy_(normal(968, 2048, seed=6))
    want = block(normed(x, residual, weight).bfloat16(), gate_up, down)
    graph.replay()
    close(y, want)
