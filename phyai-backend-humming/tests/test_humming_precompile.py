"""Compiling ahead for all sites of a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from phyai.catalog import Catalog
from phyai.dispatch import Dispatcher
from phyai.environment import Environment
from phyai.plugins import discover
from phyai.policy import default_policy
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.testing.quantized import quantized_weight
from phyai_backend_humming.layout import pack
from phyai_backend_humming.precompile import compile_ahead, products
from phyai_backend_humming.schedules import DEFAULT_ROWS

from .simulated_humming import simulated

pytest.importorskip("humming", reason="humming-kernels is not installed")

W4 = QuantScheme(TensorQuant("int4", "group", group_size=128, scale_dtype="bf16"))


@pytest.fixture
def dispatcher() -> Dispatcher:
    catalog: Catalog = discover()
    environment = Environment.simulated("h200", libraries={"humming": "0.1.20", "triton": "3.6.0", "torch": "2.11.0"})
    return Dispatcher(catalog, default_policy(), environment)


def packed(n: int, k: int) -> Any:
    return pack(quantized_weight(torch.randn(n, k), W4))


def bind_gemm(dispatcher: Dispatcher, weight: Any, **dims: int) -> None:
    n, k = weight.shape
    dispatcher.bind(
        "gemm", weights={"weight": weight}, facts=weight.facts(), dtypes={"x": "bf16", "y": "bf16"},
        dims={"N": n, "K": k, **dims},
    )  # fmt: skip


def test_equal_layers_are_compiled_once_and_progress_counts_up(dispatcher: Dispatcher) -> None:
    for _ in range(3):
        bind_gemm(dispatcher, packed(2560, 1024), M=50)
    bind_gemm(dispatcher, packed(1024, 2048), M=50)
    seen: list[tuple[int, int]] = []
    with simulated(90):
        assert compile_ahead(dispatcher, progress=lambda done, total: seen.append((done, total))) == 2
    assert seen == [(1, 2), (2, 2)]


def test_a_site_with_any_number_of_rows_is_compiled_for_several(dispatcher: Dispatcher) -> None:
    bind_gemm(dispatcher, packed(2560, 1024))
    with simulated(90):
        assert 1 < compile_ahead(dispatcher, progress=lambda done, total: None) <= len(DEFAULT_ROWS)


def test_weights_inside_composite_ops_are_found(dispatcher: Dispatcher) -> None:
    gate_up, down = packed(512, 128), packed(128, 256)
    facts = {f"parts.{part}.{name}": value for part, w in (("gate_up", gate_up), ("down", down))
             for name, value in w.facts().items()}  # fmt: skip
    dispatcher.bind(
        "gated_mlp", weights={"gate_up": gate_up, "down": down}, facts=facts, attrs={"activation": "silu"},
        dtypes={"x": "bf16", "y": "bf16"}, dims={"I": 256, "K": 128, "N": 128},
    )  # fmt: skip
    found = list(products(dispatcher))
    assert [product.weight for product in found] == [gate_up, down]
    assert [(product.facts["shape.N"], product.facts["shape.K"]) for product in found] == [(512, 128), (128, 256)]


def test_plain_weights_are_left_alone(dispatcher: Dispatcher) -> None:
    dispatcher.bind("gemm", weights={"weight": torch.zeros(64, 64, dtype=torch.bfloat16)}, dtypes={"x": "bf16"})
    assert list(products(dispatcher)) == []
