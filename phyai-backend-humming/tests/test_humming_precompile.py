"""Compiling ahead for all sites of a model."""

from __future__ import annotations

from typing import Any
from unittest import mock

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
from phyai_backend_humming.precompile import compile_ahead

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


def bind_gemm(dispatcher: Dispatcher, weight: Any, rows: tuple[int, int] | None = None, **dims: int) -> None:
    n, k = weight.shape
    dispatcher.bind(
        "gemm", weights={"weight": weight}, facts=weight.facts(), dtypes={"x": "bf16", "y": "bf16"},
        dims={"N": n, "K": k, **dims}, rows=rows,
    )  # fmt: skip


def compiled(dispatcher: Dispatcher) -> list[tuple[int, int]]:
    """What progress was told."""
    seen: list[tuple[int, int]] = []
    with simulated(90):
        dispatcher.compile_ahead(lambda done, total: seen.append((done, total)))
    return seen


def asked(dispatcher: Dispatcher) -> set[int]:
    """The numbers of rows that the library was asked for a configuration for."""
    from phyai_backend_humming.library import library

    heuristics = library().heuristics
    with mock.patch.object(library(), "heuristics", side_effect=heuristics) as spy:
        compiled(dispatcher)
    return {call.args[1] for call in spy.call_args_list}


def test_equal_layers_are_compiled_once_and_progress_counts_up(dispatcher: Dispatcher) -> None:
    for _ in range(3):
        bind_gemm(dispatcher, packed(2560, 1024), M=50)
    bind_gemm(dispatcher, packed(1024, 2048), M=50)
    assert compiled(dispatcher) == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [(None, {16, 64, 256, 1024, 4096}), ((50, 50), {50}), ((50, 400), {50, 64, 256, 400}), ((1, 60), {1, 16, 60})],
)
def test_a_site_is_compiled_for_the_numbers_of_rows_that_come(
    dispatcher: Dispatcher, rows: tuple[int, int] | None, numbers: set[int]
) -> None:
    bind_gemm(dispatcher, packed(2560, 1024), rows)
    assert asked(dispatcher) == numbers


def test_what_was_compiled_ahead_is_what_prepare_asks_for(dispatcher: Dispatcher) -> None:
    from humming.jit.runtime import KernelRuntime
    from phyai_backend_humming.library import library

    bind_gemm(dispatcher, packed(256, 512), (50, 400))
    (site,) = dispatcher.sites
    played = {"launcher": lambda: None, "transform_tensors": lambda _config, tensors: tensors}
    stream = mock.patch("phyai_backend_humming.locks.Locks")
    with simulated(90), mock.patch.multiple(library(), **played), stream:
        dispatcher.compile_ahead(lambda done, total: None)
        ahead = set(KernelRuntime._instances)
        assert site.decide(M=50).kernel.id == "humming.gemm.w4a16"
        assert set(KernelRuntime._instances) == ahead != set()


def test_weights_inside_composite_ops_are_found(dispatcher: Dispatcher) -> None:
    gate_up, down = packed(512, 128), packed(128, 256)
    facts = {f"parts.{part}.{name}": value for part, w in (("gate_up", gate_up), ("down", down))
             for name, value in w.facts().items()}  # fmt: skip
    dispatcher.bind(
        "gated_mlp", weights={"gate_up": gate_up, "down": down}, facts=facts, attrs={"activation": "silu"},
        dtypes={"x": "bf16", "y": "bf16"}, dims={"I": 256, "K": 128, "N": 128}, rows=(50, 50),
    )  # fmt: skip
    assert compiled(dispatcher) == [(1, 2), (2, 2)]


def test_weights_in_another_layout_are_left_alone(dispatcher: Dispatcher) -> None:
    dispatcher.bind("gemm", weights={"weight": torch.zeros(64, 64, dtype=torch.bfloat16)}, dtypes={"x": "bf16"})
    assert compiled(dispatcher) == []


def test_one_kernel_that_does_not_compile_keeps_no_other_from_it(dispatcher: Dispatcher) -> None:
    from humming.kernel.humming import HummingKernel
    from phyai.dispatch.ahead import awaited

    for n in (2560, 1024, 512):
        bind_gemm(dispatcher, packed(n, 1024), (50, 50))
    tried: list[int] = []

    def one(specs: Any, device: Any = None) -> None:
        tried.append(specs[0][1]["shape_n"])
        if tried[-1] == 1024:
            raise RuntimeError("ptxas died")

    done: list[int] = []
    with simulated(90), mock.patch.object(HummingKernel, "compile_many", one), pytest.raises(RuntimeError, match="ptx"):
        compile_ahead(list(awaited(dispatcher)), lambda ready, total: done.append(ready))
    assert sorted(tried) == [512, 1024, 2560]
    assert done == [1, 2, 3]


@pytest.mark.parametrize(
    ("nvrtc", "nvcc", "asked", "chosen"),
    [
        (True, True, None, None),
        (False, True, None, "nvcc"),
        (False, False, None, None),
        (False, True, "nvrtc", "nvrtc"),
    ],
)
def test_the_compiler_that_is_there_is_taken(
    nvrtc: bool, nvcc: bool, asked: str | None, chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    from humming.utils import cuda
    from humming.utils import nvrtc as runtime_compiler
    from phyai_backend_humming.library import choose_compiler

    def found(there: bool) -> Any:
        return mock.Mock() if there else mock.Mock(side_effect=RuntimeError("not found"))

    monkeypatch.setattr(runtime_compiler, "get_nvrtc_library_path", found(nvrtc))
    monkeypatch.setattr(cuda, "filter_cuda_paths", found(nvcc))
    monkeypatch.delenv("HUMMING_COMPILER", raising=False)
    if asked is not None:
        monkeypatch.setenv("HUMMING_COMPILER", asked)
    choose_compiler()
    assert os.environ.get("HUMMING_COMPILER") == chosen
    monkeypatch.delenv("HUMMING_COMPILER", raising=False)
