"""The rows' declarations, and the Triton kernels under Triton's interpreter against plain float64 torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from machine import DEVICE, ON_GPU, Resources, normal
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.kernel import Kernel, Prepared
from phyai_backend_cuda.records.triton_rows import KERNELS

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = [pytest.mark.gpu] if ON_GPU else []

BY_ID: Mapping[str, Kernel] = {kernel.id: kernel for kernel in KERNELS}
H200 = Environment.simulated("h200", libraries=()).facts().replace({"lib.triton": "3.6.0"})


def prepare(id: str, facts: Mapping[str, Any], **weights: torch.Tensor) -> Prepared:
    return BY_ID[id].load()(Facts(facts), weights, {}, Resources())


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=1e-2)


def unit(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


@pytest.mark.parametrize("rows", [64, 65])
def test_skinny_takes_64_rows_and_no_more(rows: int) -> None:
    facts = H200.replace({
        "shape.M": rows, "shape.N": 1024, "shape.K": 4096, "dtype.x": "bf16", "dtype.weight": "bf16", "dtype.y": "bf16"
    })  # fmt: skip
    assert BY_ID["cuda.gemm.skinny"].when.holds(facts) == (rows == 64)


@pytest.mark.parametrize("offset", [0, 1])
def test_rms_norm(offset: int) -> None:
    x, w = normal(3, 5, 72), normal(72, seed=1)
    run = prepare("cuda.rms_norm", {"attrs.eps": 1e-6, "attrs.offset": offset}, weight=w).run
    close(run(x), unit(x.double(), 1e-6) * (offset + w.double()))


def test_rms_norm_add_updates_the_residual() -> None:
    x, residual, w = normal(5, 72), normal(5, 72, seed=1), normal(72, seed=2)
    want = x.double() + residual.double()
    y = prepare("cuda.rms_norm_add", {}, weight=w).run(x, residual)
    close(residual, want)
    close(y, unit(want, 1e-6) * w.double())


@pytest.mark.parametrize("conditions", [1, 2, 6])
def test_ada_rms_norm_returns_its_gate(conditions: int) -> None:
    x, modulation = normal(6, 40), normal(conditions, 120, seed=1)
    y, gate = prepare("cuda.ada_rms_norm", {}).run(x, modulation)
    scale, shift, want = modulation.double().repeat_interleave(6 // conditions, 0).chunk(3, -1)
    close(y, unit(x.double(), 1e-6) * (1 + scale) + shift)
    assert torch.equal(gate, modulation[:, 80:])
    assert want.shape == (6, 40)


def test_layer_norm() -> None:
    x, w, b = normal(7, 48), normal(48, seed=1), normal(48, seed=2)
    y = prepare("cuda.layer_norm", {"attrs.eps": 1e-5}, weight=w, bias=b).run(x)
    close(y, torch.nn.functional.layer_norm(x.double(), (48,), w.double(), b.double(), 1e-5))


def test_layer_norm_add_updates_the_residual() -> None:
    x, residual, w, b = normal(5, 72), normal(5, 72, seed=1), normal(72, seed=2), normal(72, seed=3)
    want = x.double() + residual.double()
    y = prepare("cuda.layer_norm_add", {"attrs.eps": 1e-5}, weight=w, bias=b).run(x, residual)
    close(residual, want)
    close(y, torch.nn.functional.layer_norm(want, (72,), w.double(), b.double(), 1e-5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_embedding_of_a_shard_is_scaled_and_zero_outside(dtype: torch.dtype) -> None:
    table, ids = normal(7, 40), torch.tensor([[4, 10], [3, 11], [0, -1]], device=DEVICE, dtype=dtype)
    y = prepare("cuda.embedding", {"attrs.start": 4, "attrs.end": 11, "attrs.scale": 3.0}, weight=table).run(ids)
    assert y.shape == (3, 2, 40)
    close(y[0], table[[0, 6]].double() * 3)
    assert not y[1, 1].any()
    assert not y[1:, 0].any()
    assert not y[2].any()


def test_gated_residual() -> None:
    residual, x, gate = normal(6, 40), normal(6, 40, seed=1), normal(2, 40, seed=2)
    y = prepare("cuda.gated_residual", {}).run(residual, x, gate)
    close(y, residual.double() + x.double() * gate.double().repeat_interleave(3, 0))


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_gated_activation(kind: str) -> None:
    x = normal(3, 2 * 600)
    gate, up = x.double().chunk(2, -1)
    F = torch.nn.functional
    act = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda v: F.gelu(v, approximate="tanh")}[kind]
    close(prepare("cuda.gated_activation", {"attrs.activation": kind}).run(x), act(gate) * up)


def table(positions: int, rotary: int) -> torch.Tensor:
    angle = torch.arange(positions)[:, None] / 10.0 ** torch.linspace(0, 2, rotary // 2)
    return torch.cat((angle.cos(), angle.sin()), -1).float().to(DEVICE)


def rotated(x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, style: str) -> torch.Tensor:
    rotary = cos_sin.shape[1]
    cos, sin = cos_sin[positions].double()[:, None].chunk(2, -1)
    head, rest = x.double()[..., :rotary], x.double()[..., rotary:]
    a, b = head.chunk(2, -1) if style == "neox" else (head[..., 0::2], head[..., 1::2])
    a, b = a * cos - b * sin, b * cos + a * sin
    turned = torch.cat((a, b), -1) if style == "neox" else torch.stack((a, b), -1).flatten(-2)
    return torch.cat((turned, rest), -1)


@pytest.mark.parametrize("style", ["neox", "interleaved"])
@pytest.mark.parametrize("rotary", [32, 20])
def test_rope(style: str, rotary: int) -> None:
    q, k, cos_sin = normal(5, 3, 32), normal(5, 1, 32, seed=1), table(50, rotary)
    positions = torch.tensor([3, 0, 49, 7, 7], device=DEVICE)
    facts = {"shape.rotary_dim": rotary, "attrs.style": style}
    got = prepare("cuda.rope", facts, cos_sin=cos_sin).run(q, k, positions)
    for y, x in zip(got, (q, k), strict=True):
        close(y, rotated(x, positions, cos_sin, style))


def test_kv_write_touches_its_slots_alone() -> None:
    k, v = normal(3, 2, 16), normal(3, 2, 16, seed=1)
    caches = [normal(4, 5, 2, 16, seed=s) for s in (2, 3)]
    want = [c.clone() for c in caches]
    slots = torch.tensor([19, 0, 7], device=DEVICE)
    for cache, new in zip(want, (k, v), strict=True):
        cache.view(20, 2, 16)[slots] = new
    prepare("cuda.kv_write", {}).run(k, v, *caches, slots)
    assert all(torch.equal(a, b) for a, b in zip(caches, want, strict=True))


def test_qkv_rope_kv_write() -> None:
    x, w, cos_sin = normal(3, 24), normal(4 * 16, 24, seed=1), table(9, 16)
    caches, slots = [normal(2, 4, 1, 16, seed=s) for s in (2, 3)], torch.tensor([6, 1, 2], device=DEVICE)
    positions = torch.tensor([8, 2, 5], device=DEVICE)
    q = prepare("cuda.qkv_rope_kv_write", {"shape.rotary_dim": 16}, weight=w, cos_sin=cos_sin).run(
        x, positions, *caches, slots
    )
    qkv = torch.nn.functional.linear(x, w).view(3, 4, 16)
    close(q, rotated(qkv[:, :2], positions, cos_sin, "neox"))
    close(caches[0].view(8, 1, 16)[slots], rotated(qkv[:, 2:3], positions, cos_sin, "neox"))
    assert torch.equal(caches[1].view(8, 1, 16)[slots], qkv[:, 3:])


@pytest.mark.parametrize(("rows", "n", "k"), [(50, 96, 512), (7, 40, 256), (64, 32, 128)])
def test_skinny_gemm(rows: int, n: int, k: int) -> None:
    dtype = torch.bfloat16 if ON_GPU else torch.float16  # the interpreter multiplies bf16's bits as integers
    x, w, b = (t.to(dtype) for t in (normal(rows, k), normal(n, k, seed=1), normal(n, seed=2)))
    run = prepare("cuda.gemm.skinny", {"shape.N": n, "shape.K": k}, weight=w, bias=b).run
    want = x.double() @ w.double().T + b.double()
    for _ in range(2):  # the counters are zero again after a launch
        torch.testing.assert_close(run(x).double(), want, rtol=2e-2, atol=0.15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("shape", "patch", "outputs", "processors"),
    [((2, 3, 56, 70), 14, 40, 132), ((3, 3, 28, 31), 14, 130, 132), ((1, 2, 9, 7), 3, 12, 132),
     ((5, 3, 8, 40), 4, 300, 1)],  # the last fills the one processor with programs of many patches
)  # fmt: skip
def test_patch_embedding(shape: tuple[int, ...], patch: int, outputs: int, processors: int, dtype: torch.dtype) -> None:
    _, channels, height, width = shape
    x, w, b = normal(*shape), normal(outputs, channels, patch, patch, seed=1) / patch, normal(outputs, seed=2)
    position = normal((height // patch) * (width // patch), outputs, seed=3)
    w, b, position = (t.half() for t in (w, b, position))  # the interpreter multiplies bf16's bits as integers
    y = prepare("cuda.patch_embedding", {"device.sm_count": processors}, weight=w, bias=b).run(x.to(dtype), position)
    want = torch.nn.functional.conv2d(x.to(dtype).half().double(), w.double(), b.double(), stride=patch)
    close(y, want.flatten(2).transpose(1, 2) + position.double())


def test_a_weight_of_patches_that_lies_outputs_last() -> None:
    """Of whole 16 bytes to a row, which need no padding."""
    x, position, lies = normal(2, 2, 8, 8), normal(4, 24, seed=1).half(), normal(2, 4, 4, 24, seed=2).half()
    w = lies.permute(3, 0, 1, 2)
    prepared = prepare("cuda.patch_embedding", {}, weight=w)
    assert prepared.refresh is not None
    for weight in (w, w * 2):
        prepared.refresh({"weight": weight})
        want = torch.nn.functional.conv2d(x.double(), weight.double(), stride=4).flatten(2).transpose(1, 2)
        close(prepared.run(x.half(), position), want + position.double())


@pytest.mark.parametrize("id", ["cuda.rms_norm", "cuda.gated_residual", "cuda.gated_activation"])
def test_no_rows_are_no_work(id: str) -> None:
    empty = torch.empty(0, 64, dtype=torch.bfloat16, device=DEVICE)
    prepared = prepare(id, {"attrs.activation": "silu"})
    inputs = (empty, empty, empty[:, :64]) if id == "cuda.gated_residual" else (empty,)
    assert len(prepared.run(*inputs)) == 0
