"""Dense products of many rows on a Hopper GPU: values, bits, memory, and what they promise of launches that overlap."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from machine import Resources, normal
from phyai.catalog import Catalog
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.op import ArgSpec
from phyai.ops import CORE_OPS
from phyai.testing.case import MEMORY, Case
from phyai.testing.kit import examine_call
from phyai.testing.report import Outcome
from phyai.testing.subject import Subject, about
from phyai_backend_cuda.dense.product import Product, kernel_of, launch
from phyai_backend_cuda.dense.tiles import Tile
from phyai_backend_cuda.records.dense import KERNELS
from phyai_backend_cuda.runtime.tensor_map import matrix_map

F = torch.nn.functional
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")]

BY_ID = {kernel.id: kernel for kernel in KERNELS}
OPS = {op.name: op for op in CORE_OPS}
CALLS: list[tuple[str, ArgSpec]] = [
    ("cuda.gemm.dense_16bit", ArgSpec("", {"M": 6, "N": 72, "K": 136}, {}, {}, ("bias",))),
    ("cuda.gemm.dense_16bit", ArgSpec("", {"M": 140, "N": 1152, "K": 2056}, {"x": "fp16"})),
    ("cuda.mlp.dense_16bit", ArgSpec("", {"M": 6, "K": 72, "I": 136, "N": 40}, {}, {"activation": "gelu_tanh"})),
]  # fmt: skip


@pytest.mark.parametrize("form", MEMORY)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0]}-{call[1].dims}")
def test_every_check_holds_in_every_form_of_memory(call: tuple[str, ArgSpec], form: str, catalog: Catalog) -> None:
    id, spec = call
    op = OPS[BY_ID[id].op]
    case = attrs.evolve(Case.of(op, spec), memory=form).fitted(op)
    environment = Environment.detect("cuda:0", libraries=catalog.libraries)
    report = examine_call(Subject(BY_ID[id], about(BY_ID[id], catalog), environment), case)
    assert not [(check.name, check.reason) for check in report.checks if check.outcome is Outcome.FAILED]
    assert any(check.name == "capture" and check.outcome is Outcome.PASSED for check in report.checks)


def narrow(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 codes of ``t`` and the scale of each row."""
    scale = t.float().abs().amax(1) / 448
    return (t.float() / scale[:, None]).to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize(("rows", "n", "k"), [(968, 2560, 2048), (130, 1152, 4304), (1, 16, 16)])
def test_products_of_codes(rows: int, n: int, k: int) -> None:
    (x, scales), (w, columns), bias = narrow(normal(rows, k)), narrow(normal(n, k, seed=1) / k**0.5), normal(n)
    y = torch.empty(rows, n, dtype=torch.bfloat16, device="cuda")
    product(w, bias).launch(x, y, scales, columns)
    want = (x.double() * scales.double()[:, None]) @ (w.double() * columns.double()[:, None]).T + bias.double()
    assert float((y.double() - want).norm() / want.norm()) < 5e-3


def product(weight: torch.Tensor, bias: torch.Tensor | None = None, activation: str | None = None) -> Product:
    torch.cuda.synchronize()
    return Product(weight, bias, Facts({}), activation=activation)


FUNCTIONS: dict[Any, Any] = {
    None: lambda x: x, "silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}  # fmt: skip


PRODUCTS = [
    (768, 3456, 1152, None, torch.bfloat16), (768, 1152, 4304, None, torch.float16),
    (968, 2048, 2048, None, torch.bfloat16),
    (768, 4304, 1152, "gelu_tanh", torch.bfloat16), (129, 264, 200, "gelu_tanh", torch.float16),
    (129, 264, 200, "silu", torch.bfloat16), (129, 264, 200, "gelu", torch.bfloat16), (1, 8, 8, None, torch.bfloat16),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "n", "k", "activation", "dtype"), PRODUCTS)
def test_products_and_nothing_outside(rows: int, n: int, k: int, activation: Any, dtype: torch.dtype) -> None:
    x, weight, bias = normal(rows, k, dtype=dtype), normal(n, k, seed=1, dtype=dtype) / k**0.5, normal(n, dtype=dtype)
    around = torch.full((rows + 2, n + 64), torch.nan, dtype=dtype, device="cuda")
    y = around[1:-1, 32 : 32 + n]
    product(weight, bias, activation)(x, out=y)
    want = FUNCTIONS[activation](x.double() @ weight.double().T + bias.double())
    assert float((y.double() - want).norm() / want.norm()) < 4e-3
    y.fill_(torch.nan)
    assert bool(around.isnan().all()), "it writes outside its result"


TILES = [
    Tile(columns=c, across=a, along=b)
    for c, a, b in ((8, 1, 1), (120, 1, 1), (128, 1, 1), (256, 2, 1), (72, 1, 2), (48, 1, 2), (96, 2, 2))
]


@pytest.mark.parametrize("split", [1, 2])
def test_bits_do_not_depend_on_the_tile(split: int) -> None:
    """So a row's result does not depend on how many there are."""
    x, weight = normal(300, 712), normal(1000, 712, seed=1)
    torch.cuda.synchronize()
    found = []
    for tile in TILES:
        if tile.columns % (8 * split) or tile.cluster * split > 4:
            continue
        tile = attrs.evolve(tile, split=split)
        y = torch.empty(300, 1000, dtype=torch.bfloat16, device="cuda")
        boxes = matrix_map(weight, tile.columns // tile.across)
        launch(kernel_of(tile, {"ACTIVATION": 0}), tile, x, boxes, None, y, n=1000)
        found.append(y)
    assert len(found) >= 3
    assert all(torch.equal(y, found[0]) for y in found)


def test_a_row_is_the_same_whatever_rows_are_beside_it() -> None:
    run, x = product(normal(1152, 4304, seed=1)), normal(1100, 4304)
    together = run(x)
    for rows in (1, 64, 129, 500, 768):
        assert torch.equal(run(x[:rows]), together[:rows])


@pytest.mark.parametrize(("n", "k"), [(2304, 1152), (1152, 2304)])
def test_inputs_are_those_that_the_kernel_in_front_writes(n: int, k: int) -> None:
    """The one in front is any kernel and takes its time; eagerly, and in a graph."""
    run, x = product(normal(n, k, seed=1)), normal(300, k)
    want = [run(x * factor) for factor in (1, 2)]
    held, y = torch.zeros_like(x), torch.empty(300, n, dtype=torch.bfloat16, device="cuda")

    def call(factor: int) -> None:
        torch.cuda._sleep(200_000)  # type: ignore[no-untyped-call]
        torch.mul(x, factor, out=held)
        run(held, out=y)

    for factor in (1, 2, 1, 2):
        call(factor)
        assert torch.equal(y, want[factor - 1])
    graph = torch.cuda.CUDAGraph()
    got = [torch.empty_like(y) for _ in want]
    with torch.cuda.graph(graph):
        for factor in (1, 2):
            call(factor)
            got[factor - 1].copy_(y)
    for _ in range(5):
        held.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_chain_of_overlapping_launches_keeps_every_order() -> None:
    """Each reads what the one in front writes, and writes what the one before that read."""
    there, back = (product(normal(n, k, seed=n) / k**0.5) for n, k in ((2304, 1152), (1152, 2304)))
    x, h = normal(768, 1152), torch.empty(768, 2304, dtype=torch.bfloat16, device="cuda")
    first = x.clone()

    def chain() -> None:
        x.copy_(first)
        for _ in range(8):
            there(x, out=h)
            back(h, out=x)

    want = first
    for _ in range(8):
        want = (want @ there.weight.T) @ back.weight.T
    chain()
    eager = x.clone()
    assert float((eager.float() - want.float()).norm() / want.float().norm()) < 5e-2
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for _ in range(10):
        h.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(x, eager)


def test_a_call_right_after_refresh_reads_the_new_weights() -> None:
    old, new, x = normal(4096, 1024, seed=1), normal(4096, 1024, seed=2), normal(300, 1024)
    want = product(new)(x)
    prepare = BY_ID["cuda.gemm.dense_16bit"].load()
    prepared = prepare(Facts({}), {"weight": old, "bias": None}, {}, Resources())  # type: ignore[arg-type] - they are of no call site
    prepared.run(x)
    assert prepared.refresh is not None
    prepared.refresh({"weight": new, "bias": None})
    assert torch.equal(prepared.run(x), want)
