"""Encoders whose norms are part of the products, without a GPU: the algebra, and what kernels are given."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest
import torch
from hopper_simulation import memory
from machine import Resources
from phyai.catalog import Catalog
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.kernel import Prepared
from phyai.op import ArgSpec
from phyai.ops.transformer_encoder import OP
from phyai.plugins import discover
from phyai.synthesize import SynthesizedCall, synthesize
from phyai.testing.case import MEMORY, Case
from phyai.testing.kit import examine_call
from phyai.testing.report import Outcome
from phyai.testing.subject import Subject, about
from phyai_backend_cuda.dense import product
from phyai_backend_cuda.dense.tiles import SHARED, Chip
from phyai_backend_cuda.encoder import layers, products
from phyai_backend_cuda.encoder.products import PART, Adding, folded
from phyai_backend_cuda.records.encoder import KERNELS
from phyai_backend_cuda.runtime import early
from test_cuda_dense import H200, Matrix, activated

F = torch.nn.functional
(KERNEL,) = KERNELS
EPS = 1e-6
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested where there is a GPU")
CALL = ArgSpec("", {"B": 2, "S": 5, "D": 128, "I": 72, "layers": 2}, {}, {"heads": 2, "activation": "gelu_tanh"})


def values(
    at: ctypes.c_void_p, *shape: int, dtype: torch.dtype = torch.float32, row: int | None = None
) -> torch.Tensor:
    steps = [1] if len(shape) == 1 else [row or shape[-1], 1] if len(shape) == 2 else [shape[1] * shape[2], shape[2], 1]
    return memory(at.value, dtype, shape, tuple(steps))


def parts_of(x: torch.Tensor) -> torch.Tensor:
    """Mean and squared distances of every 64 columns: ``[parts, rows, 2]``."""
    parts = x.double().unflatten(-1, (-1, PART)).transpose(0, 1)
    mean = parts.mean(-1)
    return torch.stack([mean, (parts - mean[..., None]).square().sum(-1)], -1)


class Simulated:
    """``csrc/dense.cu`` and ``csrc/statistics.cu`` on the CPU: what their arguments say."""

    def __init__(self, function: str, defines: Mapping[str, int]) -> None:
        self.function, self.d = function, defines

    def clusters(self, block: int) -> int:
        return 31

    def launch(
        self, grid: Sequence[int], block: int, arguments: Sequence[Any], stream: int, *, overlap: bool = False
    ) -> None:
        assert overlap
        if self.function == "row_statistics":
            x, row, m, columns, written = arguments
            assert 128 // 8 * grid[0] >= m.value * (columns.value // PART)
            x = values(x, m.value, columns.value, dtype=torch.bfloat16, row=row.value)
            values(written, columns.value // PART, m.value, 2).copy_(parts_of(x))
            return
        x, weight, bias, y, y_row, m, n, k, *more = arguments
        m, n, k = m.value, n.value, k.value
        made = x.values(torch.bfloat16) @ weight.values(torch.bfloat16).T
        y = values(y, m, n, dtype=torch.bfloat16, row=y_row.value)
        if "NORMED" in self.d:
            read, sums, eps = more
            assert self.d["NORMED"] == k // PART
            means, within = values(read, k // PART, m, 2).double().unbind(-1)
            mean = means.mean(0)[:, None]
            squares = within.sum(0) + PART * (means - mean.T).square().sum(0)
            r = torch.rsqrt(squares / k + eps.value)[:, None]
            made = r * made - r * mean * values(sums, n).double() + values(bias, n).double()
            y.copy_(activated(made, self.d["ACTIVATION"]))
        else:
            residual, written = more
            assert self.d["COLUMNS"] // self.d["SPLIT"] == PART
            assert (residual.rows, residual.columns, residual.box) == (m, n, 128)
            y.copy_(residual.values(torch.bfloat16) + made + values(bias, n, dtype=torch.bfloat16).double())
            values(written, n // PART, m, 2).copy_(parts_of(y))


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, correct_rounding: None) -> None:
    def load(name: str, function: str, defines: Mapping[str, int], **_: Any) -> Simulated:
        return Simulated(function, defines)

    def attention(*_: object) -> Prepared:
        def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.transpose(-3, -2) for t in (q, k, v))
            return out.copy_(F.scaled_dot_product_attention(q, k, v).transpose(-3, -2))

        return Prepared(run)

    def norm(facts: Facts, weights: Mapping[str, torch.Tensor], *_: object) -> Prepared:
        held = dict(weights)

        def run(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            y = F.layer_norm(x, x.shape[-1:], held["weight"], held["bias"], float(str(facts["attrs.eps"])))
            return y if out is None else out.copy_(y)

        return Prepared(run, refresh=lambda new: [held[name].copy_(new[name]) for name in held] and None)

    for module in (product, products):
        monkeypatch.setattr(module, "load", load)
        monkeypatch.setattr(module, "current_stream", lambda: 0)
        monkeypatch.setattr(module, "matrix_map", Matrix.of)
    monkeypatch.setattr(early, "settled", lambda: None)
    monkeypatch.setattr(layers.short, "prepare", attention)
    monkeypatch.setattr(layers, "prepare_layer_norm", norm)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return discover()


def subject_of(catalog: Catalog) -> Subject:
    """The row with the device and its libraries granted."""
    claim = KERNEL.when.given({name: value for name, value in H200.items() if name.startswith(("device.", "lib."))})
    here = attrs.evolve(KERNEL, when=claim)
    kernels = tuple(here if k.id == KERNEL.id else k for k in catalog.kernels)
    return Subject(here, about(here, attrs.evolve(catalog, kernels=kernels)), Environment.detect("cpu", libraries=()))


@on_cpu
@pytest.mark.parametrize("form", MEMORY)
def test_every_form_of_memory(form: str, catalog: Catalog, simulated: None) -> None:
    case = attrs.evolve(Case.of(OP, CALL), memory=form).fitted(OP)
    report = examine_call(subject_of(catalog), case)
    assert not [(c.name, c.reason) for c in report.checks if c.outcome is Outcome.FAILED]
    assert any(c.outcome is Outcome.PASSED for c in report.checks)


@on_cpu
@pytest.mark.parametrize("dims", [{"B": 0}, {"B": 1, "S": 1}, {"layers": 1, "I": 8, "D": 64}, {"D": 192}])
def test_other_sizes(dims: Mapping[str, int], catalog: Catalog, simulated: None) -> None:
    case = Case.of(OP, attrs.evolve(CALL, dims={**CALL.dims, **dims})).fitted(OP)
    report = examine_call(subject_of(catalog), case)
    assert not [(c.name, c.reason) for c in report.checks if c.outcome is Outcome.FAILED]
    assert any(c.outcome is Outcome.PASSED for c in report.checks)


def exact(call: SynthesizedCall) -> torch.Tensor:
    """The op's formulas in float64, layer by layer."""
    w = {name: weight.double() for name, weight in call.weights.items()}
    h = call.inputs["x"].double()
    for i in range(len(w["qkv"])):
        y = F.layer_norm(h, h.shape[-1:], w["norm1_weight"][i], w["norm1_bias"][i], 1e-5)
        q, k, v = F.linear(y, w["qkv"][i], w["qkv_bias"][i]).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = (torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v).transpose(1, 2).flatten(-2)
        h = h + F.linear(mixed, w["o"][i], w["o_bias"][i])
        y = F.layer_norm(h, h.shape[-1:], w["norm2_weight"][i], w["norm2_bias"][i], 1e-5)
        y = F.gelu(F.linear(y, w["fc1"][i], w["fc1_bias"][i]), approximate="tanh")
        h = h + F.linear(y, w["fc2"][i], w["fc2_bias"][i])
    return F.layer_norm(h, h.shape[-1:], w["norm_weight"], w["norm_bias"], 1e-5)


@on_cpu
def test_new_weights_are_taken_in_place(simulated: None) -> None:
    old, new = (synthesize(OP, CALL, seed=seed) for seed in range(2))
    prepared = layers.prepare(old.facts(), old.weights, {}, Resources())
    want = exact(old), exact(new)
    got = prepared.run(old.inputs["x"])
    assert float((got.double() - want[0]).norm() / want[0].norm()) < 1e-2
    assert prepared.refresh is not None
    prepared.refresh(new.weights)
    got = prepared.run(new.inputs["x"])
    assert float((got.double() - want[1]).norm() / want[1].norm()) < 1e-2


def stream(rows: int, width: int, mean: float) -> torch.Tensor:
    """A residual stream as SigLIP's: six channels 50 to 100 times larger than the rest, with means of their own."""
    x, at = torch.randn(rows, width), torch.randperm(width)[:6]
    size = torch.tensor([50.0, 60, 70, 80, 90, 100])
    x[:, at] = x[:, at] * size + size * torch.randn(6)
    return (x + mean).bfloat16()


@pytest.mark.parametrize("mean", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("spread", [0.0, 0.7])
def test_a_norm_in_the_weight_errs_no_more_than_one_in_front(mean: float, spread: float) -> None:
    """In front it rounds what it gives, in the weight the weight: once each."""
    torch.manual_seed(0)
    k, n = 1152, 512
    x, weight, bias = stream(128, k, mean), (torch.randn(n, k) * k**-0.5).bfloat16(), torch.randn(n).bfloat16()
    gamma, beta = (spread * torch.randn(k)).exp().bfloat16(), (0.3 * torch.randn(k)).bfloat16()
    want = F.layer_norm(x.double(), (k,), gamma.double(), beta.double(), EPS) @ weight.double().T + bias.double()
    in_front = F.layer_norm(x, (k,), gamma, beta, EPS).float() @ weight.float().T + bias.float()
    made, deviation = folded(weight, bias, gamma, beta), x.float().var(1, unbiased=False, keepdim=True).add(EPS).sqrt()
    product = x.float() @ made.weight.float().T
    inside = (product - x.float().mean(1, keepdim=True) * made.sums) / deviation + made.bias
    errors = [float((y.double() - want).norm() / want.norm()) for y in (inside, in_front)]
    assert errors[0] < 1.1 * errors[1]


@pytest.mark.parametrize(("n", "k"), [(64, 8), (1152, 1152), (1152, 4304), (2048, 2048), (1024, 4096)])
def test_blocks_that_add_end_with_the_columns_of_one_part(n: int, k: int) -> None:
    for m in (1, 129, 256, 512, 768, 2048):
        tile = Adding.tile_for(m, n, k, Chip())
        assert tile.columns // tile.split == PART
        assert tile.cluster <= 4
        assert tile.shared_bytes <= SHARED


def test_the_row_asks_for_hopper_and_for_its_libraries() -> None:
    facts = {**H200, **synthesize(OP, CALL).facts()}
    assert KERNEL.when.why_not(Facts(facts)) is None
    for missing in ({"lib.cupy": None}, {"lib.triton": None}, {"device.arch": "sm100"}, {"dtype.x": "fp16"}):
        assert KERNEL.when.why_not(Facts(facts).replace(missing)) is not None
    for wrong in ({"shape.D": 96}, {"shape.S": 513}, {"shape.head_dim": 136}, {"attrs.heads": 65536}):
        assert KERNEL.when.why_not(Facts(facts).replace(wrong)) is not None
