"""Passes whose launches overlap the kernels in front of them: the same bits as without, time after time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from machine import Resources, normal
from phyai.facts import Facts
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.testing.quantized import quantized_weight
from phyai_backend_cuda.records import KERNELS

BY_ID = {kernel.id: kernel for kernel in KERNELS}
SCHEME = QuantScheme(TensorQuant("fp8_e4m3", "channel"), TensorQuant("fp8_e4m3", "token", dynamic=True))
ROWS, WIDTH, INNER = 968, 2048, 4096
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


def load(id: str, facts: dict[str, Any], weights: dict[str, Any], overlap: bool) -> Callable[..., Any]:
    return BY_ID[id].load()(Facts(facts), weights, {"overlap": overlap}, Resources()).run  # type: ignore[arg-type]


def layers(overlap: bool) -> tuple[Callable[[], Any], tuple[torch.Tensor, ...]]:
    """Twelve layers of a prefix and of a vision tower, each of which reads what the one in front wrote; their state."""
    norm = load("cuda.rms_norm_add", {"shape.D": WIDTH}, {"weight": normal(WIDTH)}, overlap)
    other = load("cuda.layer_norm_add", {"shape.D": WIDTH}, {"weight": normal(WIDTH), "bias": normal(WIDTH)}, overlap)
    projection = {"weight": normal(2560, WIDTH) / WIDTH**0.5, "cos_sin": normal(1024, 256).float()}
    qkv = load("cuda.qkv_rope_kv_write", {"shape.rotary_dim": 256}, projection, overlap)
    weights = {
        name: quantized_weight(normal(n, k, seed=k).float().cpu() / k**0.5, SCHEME).to("cuda")
        for name, n, k in (("gate_up", 2 * INNER, WIDTH), ("down", WIDTH, INNER))
    }
    parts = {f"parts.{name}.{fact}": value for name, w in weights.items() for fact, value in w.facts().items()}
    call = {"op": "gated_mlp", "dtype.x": "bf16", "dtype.y": "bf16", "attrs.activation": "gelu_tanh", **parts}
    mlp = load("cuda.gated_mlp.fp8_a8_fast", call, weights, overlap)
    x, residual = normal(ROWS, WIDTH, seed=1), normal(ROWS, WIDTH, seed=2)
    cache = normal(1, 1024, 1, 256, seed=3), normal(1, 1024, 1, 256, seed=4)
    places = torch.arange(ROWS, device="cuda")

    def run() -> None:
        h = x
        for _ in range(12):
            q = qkv(norm(h, residual), places, *cache, places)
            h = mlp(other(q.view(ROWS, WIDTH) + cache[0][0, :ROWS].repeat(1, 1, 8).view(ROWS, WIDTH), residual))
        x.copy_(h)

    return run, (x, residual, *cache)


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU or a later one")
@pytest.mark.parametrize("captured", [False, True])
def test_overlapping_launches_change_no_bit(captured: bool) -> None:
    results = []
    for overlap in (False, True):
        run, state = layers(overlap)
        start = [t.clone() for t in state]
        run()
        for tensor, value in zip(state, start, strict=True):
            tensor.copy_(value)
        again = run
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            again = graph.replay
        for _ in range(8):
            again()
        results.append([t.clone() for t in state])
    for plain, overlapped in zip(*results, strict=True):
        assert bool(plain.isfinite().all())
        assert torch.equal(plain, overlapped)
