"""Encoders whose norms are part of the products, on a Hopper GPU: values, bits, memory, graphs."""

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
from phyai.ops.transformer_encoder import OP
from phyai.plugins import discover
from phyai.synthesize import SynthesizedCall, synthesize
from phyai.testing.case import MEMORY, Case
from phyai.testing.kit import examine_call
from phyai.testing.report import Outcome
from phyai.testing.subject import Subject, about
from phyai_backend_cuda.dense.product import Product
from phyai_backend_cuda.encoder.products import PART, Adding, Normed, folded, statistics_for, statistics_of
from phyai_backend_cuda.records.encoder import KERNELS

F = torch.nn.functional
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")]
(KERNEL,) = KERNELS
EPS, WIDTH, INNER = 1e-6, 1152, 4304
GELU = {"activation": "gelu_tanh", "eps": EPS}
SHORT = ArgSpec("", {"B": 2, "S": 100, "D": WIDTH, "I": 520, "layers": 2}, {}, {"heads": 16, **GELU})
TINY = ArgSpec("", {"B": 3, "S": 7, "D": 64, "I": 24, "layers": 1}, {}, {"heads": 1, "activation": "silu"})


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return discover()


@pytest.mark.parametrize("form", MEMORY)
@pytest.mark.parametrize("spec", [SHORT, TINY], ids=["short", "tiny"])
def test_every_check_holds_in_every_form_of_memory(spec: ArgSpec, form: str, catalog: Catalog) -> None:
    case = attrs.evolve(Case.of(OP, spec), memory=form).fitted(OP)
    environment = Environment.detect("cuda:0", libraries=catalog.libraries)
    report = examine_call(Subject(KERNEL, about(KERNEL, catalog), environment), case)
    assert not [(check.name, check.reason) for check in report.checks if check.outcome is Outcome.FAILED]
    assert any(check.name == "capture" and check.outcome is Outcome.PASSED for check in report.checks)


def stream(rows: int, width: int = WIDTH) -> torch.Tensor:
    """A residual stream as SigLIP's: six channels 50 to 100 times larger than the rest, with means of their own."""
    x = normal(rows, width).float()
    size = torch.tensor([50.0, 60, 70, 80, 90, 100], device="cuda")
    x[:, 5:300:50] = x[:, 5:300:50] * size + size.flip(0)
    return (x + 1).bfloat16()


def error(y: torch.Tensor, want: torch.Tensor) -> float:
    return float((y.double() - want).norm() / want.norm())


def parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and squared distances of every 64 columns."""
    cut = x.double().unflatten(-1, (-1, PART))
    mean = cut.mean(-1)
    return mean, (cut - mean[..., None]).square().sum(-1)


@pytest.mark.parametrize("rows", [1, 100, 256, 768, 777])
@pytest.mark.parametrize(("n", "activation"), [(3 * WIDTH, None), (INNER, "gelu_tanh")])
def test_a_product_behind_a_norm(rows: int, n: int, activation: Any) -> None:
    x, weight, bias = stream(rows), normal(n, WIDTH, seed=1) / WIDTH**0.5, normal(n, seed=2)
    gamma, beta = (normal(WIDTH, seed=3).float() * 0.7).exp().bfloat16(), normal(WIDTH, seed=4) / 4
    known, y = statistics_for(rows, WIDTH, x.device), torch.full((rows, n), torch.nan, device="cuda").bfloat16()
    product = Normed(folded(weight, bias, gamma, beta), EPS, Facts({}), activation=activation)
    torch.cuda.synchronize()
    statistics_of(x, known)
    product.normed(x, known, y)
    for got, want in zip(known.unbind(-1), parts(x), strict=True):
        assert error(got.T, want) < 1e-6
    want = F.layer_norm(x.double(), (WIDTH,), gamma.double(), beta.double(), EPS)
    want = want @ weight.double().T + bias.double()
    want = F.gelu(want, approximate="tanh") if activation else want
    in_front = Product(weight, bias, Facts({}), activation=activation)(F.layer_norm(x, (WIDTH,), gamma, beta, EPS))
    assert error(y, want) < 1.1 * error(in_front, want)
    alone = torch.empty(1, n, dtype=torch.bfloat16, device="cuda")
    product.normed(x[rows // 2 : rows // 2 + 1], known[:, rows // 2 : rows // 2 + 1].contiguous(), alone)
    assert torch.equal(alone[0], y[rows // 2])


@pytest.mark.parametrize("rows", [1, 100, 256, 768, 777])
@pytest.mark.parametrize("k", [8, WIDTH, INNER])
def test_a_product_added_to_the_stream(rows: int, k: int) -> None:
    x, weight, bias, residual = normal(rows, k), normal(WIDTH, k, seed=1) / k**0.5, normal(WIDTH), stream(rows)
    product, known = Adding(weight, bias, Facts({})), statistics_for(rows, WIDTH, x.device)
    around = torch.full((rows + 2, WIDTH + 64), torch.nan, dtype=torch.bfloat16, device="cuda")
    y = around[1:-1, 32 : 32 + WIDTH]
    torch.cuda.synchronize()
    product.added(x, residual, y, known)
    want = residual.double() + x.double() @ weight.double().T + bias.double()
    assert error(y, want) < 3e-3
    for got, exact in zip(known.unbind(-1), parts(want), strict=True):
        assert error(got.T, exact) < 1e-4
    in_place, again = residual.clone(), torch.empty_like(known)
    product.added(x, in_place, in_place, again)
    assert torch.equal(in_place, y)
    assert torch.equal(again, known)
    alone, of_it = residual[rows // 2 :][:1].clone(), statistics_for(1, WIDTH, x.device)
    product.added(x[rows // 2 :][:1], alone, alone, of_it)
    assert torch.equal(alone[0], y[rows // 2])
    assert torch.equal(of_it[:, 0], known[:, rows // 2])
    y.fill_(torch.nan)
    assert bool(around.isnan().all()), "it writes outside its result"


@pytest.mark.parametrize(("width", "inner"), [(192, 2048), (960, 3840)])
def test_a_width_that_ends_inside_a_cluster_of_blocks_has_its_statistics_and_no_more(width: int, inner: int) -> None:
    rows, parts_of_it = 100, width // 64
    x, weight, bias = normal(rows, inner), normal(width, inner, seed=1) / inner**0.5, normal(width)
    residual = normal(rows, width, seed=2)
    room = torch.full((parts_of_it + 8, rows, 2), torch.nan, device="cuda")
    y = torch.empty_like(residual)
    torch.cuda.synchronize()
    Adding(weight, bias, Facts({})).added(x, residual, y, room[:parts_of_it])
    assert bool(room[:parts_of_it].isfinite().all())
    assert bool(room[parts_of_it:].isnan().all()), "it writes behind its statistics"


def prepared(call: SynthesizedCall) -> Any:
    facts = call.facts({"device.arch": "sm90", "device.sm_count": 132})
    return KERNEL.load()(facts, call.weights, {}, Resources())  # type: ignore[arg-type] - they are of no call site


def test_a_graph_gives_the_bits_of_the_call_and_sequences_do_not_depend_on_each_other() -> None:
    call = synthesize(OP, attrs.evolve(SHORT, dims={**SHORT.dims, "B": 3, "S": 256}), device="cuda")
    x, run = call.inputs["x"], prepared(call).run
    want = run(x)
    assert torch.equal(run(x[1:2]), want[1:2])
    graph, y = torch.cuda.CUDAGraph(), torch.empty_like(x)
    with torch.cuda.graph(graph):
        run(x, out=y)
    for _ in range(10):
        y.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, want)


def test_new_weights_are_taken_in_place() -> None:
    old, new = (synthesize(OP, SHORT, device="cuda", seed=seed) for seed in range(2))
    x, want = old.inputs["x"], prepared(new).run(old.inputs["x"])
    held = prepared(old)
    assert not torch.equal(held.run(x), want)
    held.refresh(new.weights)
    assert torch.equal(held.run(x), want)
