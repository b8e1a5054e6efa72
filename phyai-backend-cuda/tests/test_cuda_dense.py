"""Dense products of many rows without a GPU: what their rows claim and compute, their tiles, their weights' order."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest
import torch
from hopper_simulation import memory
from machine import Resources, granted
from phyai.catalog import Catalog
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.kernel import Kernel
from phyai.op import ArgSpec
from phyai.ops import CORE_OPS
from phyai.testing.case import MEMORY, Case
from phyai.testing.kit import examine, examine_call
from phyai.testing.report import Outcome
from phyai_backend_cuda.dense import fp8, gemm, product
from phyai_backend_cuda.dense.product import ACTIVATIONS
from phyai_backend_cuda.dense.tiles import MAX_COLUMNS, SHARED, Chip, cost, split_of, tile_for
from phyai_backend_cuda.records.dense import KERNELS
from phyai_backend_cuda.runtime import early
from phyai_backend_cuda.runtime.nvrtc import SOURCES

F = torch.nn.functional
ON_GPU = torch.cuda.is_available()
on_cpu = pytest.mark.skipif(ON_GPU, reason="the kernels themselves are tested where there is a GPU")
H200 = Environment.simulated("h200", libraries=()).facts().replace({"lib.cupy": "14.2.0", "lib.triton": "3.6.0"})
BY_ID: Mapping[str, Kernel] = {kernel.id: kernel for kernel in KERNELS}
OPS = {op.name: op for op in CORE_OPS}


class Matrix(ctypes.Structure):
    """In the place of a tensor map: what it would describe."""

    _fields_ = (
        ("at", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("rows", "columns", "step", "box")),
    )  # fmt: skip

    @classmethod
    def of(cls, matrix: torch.Tensor, box: int) -> Matrix:
        assert [matrix.data_ptr() % 16, matrix.stride(0) * matrix.element_size() % 16, matrix.stride(1)] == [0, 0, 1]
        assert matrix.stride(0) >= matrix.shape[1]
        assert box in range(8, 257, 8)
        return cls(matrix.data_ptr(), *matrix.shape, matrix.stride(0), box)

    def values(self, dtype: torch.dtype) -> torch.Tensor:
        return memory(self.at, dtype, (self.rows, self.columns), (self.step, 1)).double()


class Simulated:
    """``csrc/dense.cu`` on the CPU: what its arguments and its grid say."""

    def __init__(self, defines: Mapping[str, int], cluster: int) -> None:
        self.d, self.cluster = defines, cluster

    def clusters(self, block: int) -> int:
        return 31

    def launch(
        self, grid: Sequence[int], block: int, arguments: Sequence[Any], stream: int, *, overlap: bool = False
    ) -> None:
        x, weight, bias, y, y_row, m, n, k, *more = arguments
        d, dtype = self.d, torch.float16 if "HALF" in self.d else torch.bfloat16
        assert overlap
        assert (block, self.cluster) == (384, d["ACROSS"] * d["ALONG"] * d["SPLIT"])
        clusters = -(-m.value // (128 * d["ACROSS"])) * -(-n.value // (d["COLUMNS"] * d["ALONG"]))
        assert tuple(grid) == (self.cluster * clusters,)
        assert (x.box, weight.box) == (128 // d["ALONG"], d["COLUMNS"] // d["ACROSS"])
        assert [x.rows, x.columns, weight.rows, weight.columns] == [m.value, k.value, n.value, k.value]
        given = torch.float8_e4m3fn if "FP8" in d else dtype
        want = x.values(given) @ weight.values(given).T
        if "FP8" in d:
            rows, columns = (
                memory(at.value, torch.float32, (size.value,), (1,)).double()
                for at, size in zip(more, (m, n), strict=True)
            )
            want = want * rows[:, None] * columns
        if bias.value:
            want = want + memory(bias.value, dtype, (n.value,), (1,)).double()
        assert [y.value % 16, y_row.value % 8] == [0, 0]
        memory(y.value, dtype, want.shape, (y_row.value, 1)).copy_(activated(want, d["ACTIVATION"]))


def activated(x: torch.Tensor, activation: int) -> torch.Tensor:
    name = ACTIVATIONS[activation]
    if name is None:
        return x
    return {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda v: F.gelu(v, approximate="tanh")}[name](x)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, correct_rounding: None, nothing_in_front: None) -> None:
    def load(name: str, function: str, defines: Mapping[str, int], *, cluster: int = 1, **_: Any) -> Simulated:
        return Simulated(defines, cluster)

    monkeypatch.setattr(product, "load", load)
    monkeypatch.setattr(product, "matrix_map", Matrix.of)
    monkeypatch.setattr(product, "current_stream", lambda: 0)
    for module in (early, gemm, fp8):
        monkeypatch.setattr(module, "settled", lambda: None)


@on_cpu
@pytest.mark.parametrize("id", BY_ID)
def test_what_a_row_claims_it_computes(id: str, catalog: Catalog, simulated: None) -> None:
    report = examine(granted(BY_ID[id], catalog, H200), seconds=3, calls=40)
    assert not [(check.name, check.reason, check.call) for check in report.checks if check.outcome is Outcome.FAILED]
    assert any(check.outcome is Outcome.PASSED for check in report.checks)


CALLS: list[tuple[str, ArgSpec]] = [
    ("cuda.gemm.dense_16bit", ArgSpec("", {"M": 6, "N": 24, "K": 40}, {}, {}, ("bias",))),
    ("cuda.mlp.dense_16bit",
     ArgSpec("", {"M": 6, "K": 24, "I": 40, "N": 16}, {}, {"activation": "gelu"}, ("fc1_bias",))),
]  # fmt: skip


@on_cpu
@pytest.mark.parametrize("form", MEMORY)
@pytest.mark.parametrize(("id", "spec"), CALLS, ids=str)
def test_every_form_of_memory(id: str, spec: ArgSpec, form: str, catalog: Catalog, simulated: None) -> None:
    case = attrs.evolve(Case.of(OPS[BY_ID[id].op], spec), memory=form).fitted(OPS[BY_ID[id].op])
    report = examine_call(granted(BY_ID[id], catalog, H200), case)
    assert not [c.reason for c in report.checks if c.outcome is Outcome.FAILED]
    assert any(c.outcome is Outcome.PASSED for c in report.checks)


@on_cpu
@pytest.mark.parametrize("overlap", [False, True])
def test_inputs_are_quantized_in_launches_of_either_kind(overlap: bool, catalog: Catalog, simulated: None) -> None:
    """A kit that draws calls for a time comes to the second kind late, or not at all."""
    weight = {"dtype": "fp8_e4m3", "granularity": "channel"}
    call = {
        "dims": {"M": 1, "N": 16, "K": 16}, "dtypes": {"x": "bf16", "weight": "fp8_e4m3", "y": "bf16"},
        "scheme": {"weight": weight, "input": {"dtype": "fp8_e4m3", "granularity": "token", "dynamic": True}},
        "layout": "plain", "params": {"overlap": overlap},
    }  # fmt: skip
    report = examine_call(granted(BY_ID["cuda.gemm.dense_fp8_a8"], catalog, H200), Case.from_json(OPS["gemm"], call))
    assert not [(check.name, check.reason) for check in report.checks if check.outcome is Outcome.FAILED]
    assert any(check.name == "values" and check.outcome is Outcome.PASSED for check in report.checks)


@on_cpu
@pytest.mark.parametrize("rows", [1, 5])
def test_one_row_for_all_is_read_as_if_there_were_many(rows: int, simulated: None) -> None:
    x, weight = torch.randn(1, 24).bfloat16(), torch.randn(16, 24).bfloat16()
    y = product.Product(weight, None, Facts({}))(x[0].expand(rows, 24))
    torch.testing.assert_close(y, F.linear(x, weight).expand(rows, 16), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("rows", [None, (1, 768)])
def test_what_cannot_be_compiled_is_told_when_it_is_prepared(
    rows: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then another kernel takes its place; at the first call none would."""

    def load(*_: Any, **__: Any) -> Simulated:
        raise RuntimeError("the compiler refuses")

    monkeypatch.setattr(product, "load", load)
    resources = Resources()
    resources.rows = rows
    with pytest.raises(RuntimeError, match="the compiler refuses"):
        gemm.prepare(Facts({}), {"weight": torch.zeros(16, 24).bfloat16()}, {}, resources)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.id)
def test_a_row_asks_for_hopper_and_for_cupy(kernel: Kernel) -> None:
    for missing in ({"lib.cupy": None}, {"device.arch": "sm100"}, {"device.arch": "sm80"}, {"device.type": "cpu"}):
        assert kernel.when.given(dict(H200.replace(missing))).why_not({}) is not None


SITES = [(n, k) for n in (8, 1152, 2048, 2560, 3456, 4304) for k in (8, 1152, 2048, 4304)]


@pytest.mark.parametrize(("n", "k"), SITES)
def test_every_tile_can_be_run(n: int, k: int) -> None:
    for m in (1, 50, 129, 256, 512, 712, 768, 968, 1218, 5000):
        tile = tile_for(m, n, k)
        assert 8 <= tile.columns <= MAX_COLUMNS
        assert tile.columns % (8 * max(tile.across, tile.split)) == 0
        assert tile.cluster in (1, 2, 4)
        assert tile.depth >= 3
        assert tile.shared_bytes <= SHARED
        assert -(-k // 64) >= tile.split  # no block without a step of K
        assert tile.grid(m, n) % tile.cluster == 0


def test_a_row_is_added_up_the_same_way_whatever_rows_are_beside_it() -> None:
    for n, k in SITES:
        assert {tile_for(m, n, k).split for m in range(1, 1500, 37)} == {split_of(n, k)}


def test_where_no_cluster_of_four_fits_none_is_chosen() -> None:
    assert all(tile_for(m, n, k, Chip(132, 0)).cluster <= 2 for n, k in SITES for m in (50, 768))


def test_no_other_width_costs_less() -> None:
    for m, n, k in ((768, 3456, 1152), (968, 2560, 2048), (768, 1152, 4304)):
        chosen = tile_for(m, n, k)
        for columns in range(16, MAX_COLUMNS + 1, 16):
            assert cost(chosen, m, n, k, Chip()) <= cost(attrs.evolve(chosen, columns=columns), m, n, k, Chip())


@pytest.mark.parametrize(("across", "along", "split"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (2, 1, 2)])
def test_who_fetches_for_a_block_is_told_when_it_has_read(across: int, along: int, split: int) -> None:
    """The masks, and the lanes that tell, as ``csrc/dense.cu`` has them."""
    shared = across * along
    fetches: dict[int, set[int]] = {}
    tells: dict[int, list[int]] = {}
    for rank in range(shared * split):
        a, b, half = rank % across, rank // across % along, rank // shared
        rows = ((1 << across) - 1) << (half * shared + b * across)
        columns = sum(1 << (half * shared + i * across + a) for i in range(along))
        fetches[rank] = {other for other in range(shared * split) if (rows | columns) >> other & 1}
        lanes = range(across + along - 1)
        sources = [b * across + i if i < across else (i - across + (i - across >= b)) * across + a for i in lanes]
        tells[rank] = [half * shared + source for source in sources]
    for rank, sources in tells.items():
        assert len(set(sources)) == across + along - 1
        assert set(sources) == {other for other, to in fetches.items() if rank in to}


def test_nothing_but_the_weight_and_its_bias_is_touched_before_the_kernel_in_front_has_ended() -> None:
    text = (SOURCES / "dense.cu").read_text(encoding="utf-8")
    body = text[text.index('extern "C"') :]
    body = body[body.index("{") :]
    before, after = body.split("wait_previous();")
    assert "wait_previous" not in after
    assert "return;" not in before  # every block waits, so that whoever waits for it waits for all in front
    assert "load(to, x" not in before
    assert "load_x" not in before
    assert "row_scale[" not in before
