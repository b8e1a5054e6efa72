"""Products and feed-forward blocks with inputs of 8 bits, against the reference's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest
import torch
from machine import DEVICE, ON_GPU, Resources, normal
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.kernel import Kernel
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.testing.quantized import quantized_weight
from phyai_backend_cuda.records.quantized import KERNELS
from phyai_backend_reference.quantized.gemm import prepare_quantized_input
from phyai_backend_reference.reference.activation import prepare as plain_activation
from phyai_backend_reference.reference.gated_activation import prepare as gated_activation

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.usefixtures("correct_rounding")

BY_ID: Mapping[str, Kernel] = {kernel.id: kernel for kernel in KERNELS}
H200 = Environment.simulated("h200", libraries=()).facts().replace({"lib.triton": "3.6.0"})
GRANULARITIES = [
    ("tensor", "tensor", True), ("tensor", "tensor", False), ("channel", "token", True), ("channel", "tensor", False),
    ("channel", "tensor", True), ("tensor", "token", True),
]  # fmt: skip
PRODUCTS = ["cuda.gemm.fp8_a8", "cuda.gemm.fp8_a8_fast"]
MLPS = ["cuda.gated_mlp.fp8_a8", "cuda.gated_mlp.fp8_a8_fast"]
PLAIN_MLPS = ["cuda.mlp.fp8_a8", "cuda.mlp.fp8_a8_fast"]


def weight_of(n: int, k: int, granularity: str, activation: str, dynamic: bool, seed: int = 0) -> Any:
    scheme = QuantScheme(TensorQuant("fp8_e4m3", granularity), TensorQuant("fp8_e4m3", activation, dynamic=dynamic))
    return quantized_weight(normal(n, k, seed=seed).float().cpu() / k**0.5, scheme).to(DEVICE)


def gemm_facts(weight: Any, **changes: Any) -> Facts:
    n, k = weight.shape
    call = {"op": "gemm", "shape.M": 5, "shape.N": n, "shape.K": k, "dtype.x": "bf16", "dtype.y": "bf16"}
    return Facts({**H200, **call, **weight.facts(), **changes})


def reference(weight: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    facts = gemm_facts(weight, **{"dtype.y": "fp32"})
    return prepare_quantized_input(facts, {"weight": weight, "bias": bias}, {}, Resources()).run(x)


@pytest.mark.parametrize("id", PRODUCTS)
@pytest.mark.parametrize(("granularity", "activation", "dynamic"), GRANULARITIES)
@pytest.mark.parametrize("m", [5, 1])
def test_a_product_equals_the_reference(id: str, granularity: str, activation: str, dynamic: bool, m: int) -> None:
    weight, x, bias = weight_of(32, 48, granularity, activation, dynamic), normal(m, 48), normal(32, seed=2)
    facts = gemm_facts(weight, **{"dtype.bias": "bf16"})
    assert BY_ID[id].when.holds(facts)
    prepared = BY_ID[id].load()(facts, {"weight": weight, "bias": bias}, {}, Resources())
    want = reference(weight, x, bias)
    torch.testing.assert_close(prepared.run(x).float(), want, rtol=1e-2, atol=1e-2)
    out = torch.empty(m, 64, dtype=torch.bfloat16, device=DEVICE)
    for place in (torch.empty(m, 32, dtype=torch.bfloat16, device=DEVICE), out[:, ::2]):
        assert prepared.run(x, out=place) is place
        torch.testing.assert_close(place.float(), want, rtol=1e-2, atol=1e-2)
    other = weight_of(32, 48, granularity, activation, dynamic, seed=5)
    assert prepared.refresh is not None
    prepared.refresh({"weight": other, "bias": normal(32, seed=3)})
    want = reference(other, x, normal(32, seed=3))
    torch.testing.assert_close(prepared.run(x).float(), want, rtol=1e-2, atol=1e-2)


def offset(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, one element behind a multiple of 16 bytes."""
    place = torch.empty(tensor.numel() + 17, dtype=tensor.dtype, device=tensor.device)[1 : tensor.numel() + 1]
    return place.view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("id", PRODUCTS)
def test_cublas_sees_multiples_of_16_bytes_wherever_the_call_lies(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    usual = torch._scaled_mm

    def watched(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        held = [*tensors, *(t for t in (options.get("bias"), options.get("out")) if t is not None)]
        seen.extend(t.data_ptr() % 16 for t in held)
        return usual(*tensors, **options)

    monkeypatch.setattr(torch, "_scaled_mm", watched)
    weight, other = (weight_of(32, 48, "channel", "token", True, seed=seed) for seed in (0, 5))
    moved = attrs.evolve(weight, codes=offset(weight.codes), scale=offset(weight.scale))
    x, bias, out = offset(normal(3, 48)), offset(normal(32, seed=2)), offset(normal(3, 32))
    facts = gemm_facts(weight, **{"dtype.bias": "bf16"})
    prepared = BY_ID[id].load()(facts, {"weight": moved, "bias": bias}, {}, Resources())
    assert prepared.run(x, out=out) is out
    torch.testing.assert_close(out.float(), reference(weight, x, bias), rtol=1e-2, atol=1e-2)
    assert prepared.refresh is not None
    prepared.refresh({"weight": other, "bias": bias})
    torch.testing.assert_close(prepared.run(x).float(), reference(other, x, bias), rtol=1e-2, atol=1e-2)
    assert seen
    assert not any(seen)


def test_launches_that_overlap_need_hopper() -> None:
    from phyai_backend_cuda.triton_rows.common import overlapping

    assert overlapping(Facts({"device.arch": "sm90"}), {"overlap": True})
    assert not overlapping(Facts({"device.arch": "sm89"}), {"overlap": False})
    with pytest.raises(ValueError, match="sm89"):
        overlapping(Facts({"device.arch": "sm89"}), {"overlap": True})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"shape.K": 56}, "shape.K"), ({"shape.N": 40}, "shape.N"), ({"device.arch": "sm86"}, "sm86"),
        ({"quant.weight": "fp8_e5m2"}, "e5m2"), ({"quant.layout": "humming"}, "layout"),
        ({"quant.pre_scale": True}, "pre_scale"), ({"dtype.y": "fp16"}, "dtype.y"),
        ({"quant.fields.activation_scale_rule": "inverse"}, "scale_rule"), ({"lib.triton": None}, "triton"),
    ],
)  # fmt: skip
def test_what_a_product_cannot_do_is_refused_with_the_reason(changes: dict[str, Any], word: str) -> None:
    facts = gemm_facts(weight_of(32, 48, "channel", "token", True)).replace(changes)
    assert word in (BY_ID["cuda.gemm.fp8_a8"].when.why_not(facts) or "")


def mlp_facts(
    first: Any, second: Any, activation: str = "gelu_tanh", names: tuple[str, str] = ("gate_up", "down")
) -> Facts:
    parts = {f"parts.{n}.{f}": v for n, w in zip(names, (first, second), strict=True) for f, v in w.facts().items()}
    dims = {"shape.M": 5, "shape.K": first.shape[1], "shape.I": second.shape[1], "shape.N": second.shape[0]}
    call = {
        "op": "mlp" if "fc1" in names else "gated_mlp",
        **dims,
        "dtype.x": "bf16",
        "dtype.y": "bf16",
        "attrs.activation": activation,
    }
    return Facts({**H200, **call, **parts})


def mlp_reference(x: torch.Tensor, gate_up: Any, down: Any, activation: str) -> torch.Tensor:
    facts = Facts({"attrs.activation": activation, "dtype.y": "bf16"})
    hidden = reference(gate_up, x).bfloat16()
    return reference(down, gated_activation(facts, {}, {}, Resources()).run(hidden))


#: What a block may err by where values between its products are computed another way, and so become the other of two
#: codes here and there: sqrt(e / 8) for a relative error of e (phyai.testing.compare says why). Where one side adds up
#: in fp32 and the other in the tensor cores, e is 2^-8: 2^-9 for each of gate and up.
FLIPPED = (2**-8 / 8) ** 0.5


def close(got: torch.Tensor, want: torch.Tensor, limit: float = 1e-2) -> None:
    """As near as codes that may fall to either side allow."""
    assert float((got.float() - want).norm() / want.norm()) < limit


@pytest.mark.parametrize("id", MLPS)
@pytest.mark.parametrize("activation", ["gelu_tanh", "silu", "gelu"])
@pytest.mark.parametrize("first", GRANULARITIES)
def test_a_gated_mlp_equals_its_parts(id: str, activation: str, first: tuple[str, str, bool]) -> None:
    gate_up, down, x = weight_of(96, 32, *first), weight_of(16, 48, *first, seed=1), normal(2, 3, 32, seed=2)
    facts = mlp_facts(gate_up, down, activation)
    assert BY_ID[id].when.holds(facts)
    prepared = BY_ID[id].load()(facts, {"gate_up": gate_up, "down": down}, {}, Resources())
    close(prepared.run(x), mlp_reference(x.flatten(0, 1), gate_up, down, activation).view(2, 3, 16))
    place = torch.empty(2, 3, 32, dtype=torch.bfloat16, device=DEVICE)[..., ::2]
    assert prepared.run(x, out=place) is place
    close(place, mlp_reference(x.flatten(0, 1), gate_up, down, activation).view(2, 3, 16))
    new = [weight_of(96, 32, *first, seed=7), weight_of(16, 48, *first, seed=8)]
    assert prepared.refresh is not None
    prepared.refresh(dict(zip(("gate_up", "down"), new, strict=True)))
    close(prepared.run(x), mlp_reference(x.flatten(0, 1), *new, activation).view(2, 3, 16))


@pytest.mark.parametrize("id", PLAIN_MLPS)
@pytest.mark.parametrize("first", GRANULARITIES)
@pytest.mark.parametrize("biased", [True, False])
def test_an_mlp_equals_its_parts(id: str, first: tuple[str, str, bool], biased: bool) -> None:
    fc1, fc2, x = weight_of(48, 32, *first), weight_of(16, 48, *first, seed=1), normal(5, 32, seed=2)
    biases = [normal(48, seed=3), normal(16, seed=4)] if biased else [None, None]
    facts = mlp_facts(fc1, fc2, names=("fc1", "fc2"))
    assert BY_ID[id].when.holds(facts)
    weights = {"fc1": fc1, "fc2": fc2, "fc1_bias": biases[0], "fc2_bias": biases[1]}
    prepared = BY_ID[id].load()(facts, weights, {}, Resources())
    activated = Facts({"attrs.activation": "gelu_tanh", "dtype.y": "bf16"})
    hidden = plain_activation(activated, {}, {}, Resources()).run(reference(fc1, x, biases[0]).bfloat16())
    close(prepared.run(x), reference(fc2, hidden, biases[1]))


def test_products_of_no_rows() -> None:
    gate_up, down = weight_of(96, 32, "channel", "token", True), weight_of(16, 48, "channel", "token", True)
    x = torch.empty(0, 32, dtype=torch.bfloat16, device=DEVICE)
    mlp = BY_ID[MLPS[0]].load()(mlp_facts(gate_up, down), {"gate_up": gate_up, "down": down}, {}, Resources())
    gemm = BY_ID[PRODUCTS[0]].load()(gemm_facts(gate_up), {"weight": gate_up}, {}, Resources())
    assert mlp.run(x).shape == (0, 16)
    assert gemm.run(x).shape == (0, 96)


def test_fast_products_promise_less() -> None:
    for usual, fast in (PRODUCTS, MLPS, PLAIN_MLPS):
        assert BY_ID[usual].numerics.accumulation == "fp32"
        assert BY_ID[fast].numerics.accumulation != "fp32"
        assert BY_ID[fast].rank < BY_ID[usual].rank
        assert attrs.evolve(BY_ID[fast].numerics, accumulation="fp32") == BY_ID[usual].numerics


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(
    ("op", "id", "shapes"),
    [
        ("gated_mlp", MLPS[0], ((32768, 2048), (2048, 16384))), ("gated_mlp", MLPS[1], ((32768, 2048), (2048, 16384))),
        ("mlp", PLAIN_MLPS[0], ((4304, 1152), (1152, 4304))), ("gemm", PRODUCTS[0], ((2560, 2048),)),
    ],
)  # fmt: skip
def test_blocks_of_pi05_are_captured_and_replayed_with_new_inputs(
    op: str, id: str, shapes: tuple[tuple[int, int], ...]
) -> None:
    weights = [weight_of(*shape, "channel", "token", True, seed=i) for i, shape in enumerate(shapes)]
    names = {"gated_mlp": ("gate_up", "down"), "mlp": ("fc1", "fc2"), "gemm": ("weight",)}[op]
    facts = gemm_facts(weights[0]) if op == "gemm" else mlp_facts(weights[0], weights[1], names=(names[0], names[1]))
    run = BY_ID[id].load()(facts, dict(zip(names, weights, strict=True)), {}, Resources()).run
    x = normal(968, shapes[0][1])
    run(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(x)
    x.copy_(normal(968, shapes[0][1], seed=7))
    graph.replay()
    if op == "gemm":
        want = reference(weights[0], x)
    elif op == "gated_mlp":
        want = mlp_reference(x, weights[0], weights[1], "gelu_tanh")
    else:
        activated = Facts({"attrs.activation": "gelu_tanh", "dtype.y": "bf16"})
        hidden = plain_activation(activated, {}, {}, Resources()).run(reference(weights[0], x).bfloat16())
        want = reference(weights[1], hidden)
    close(y, want, FLIPPED if id.endswith("_fast") else 1e-2)
    again = y.clone()
    graph.replay()
    assert torch.equal(y, again)
