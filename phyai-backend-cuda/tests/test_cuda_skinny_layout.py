"""Cuts of products of few rows, and the layout of their quantized weights."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.testing.packers import examine_format, round_trip
from phyai.testing.quantized import quantized_weight
from phyai.testing.report import Outcome
from phyai_backend_cuda.records.skinny import FORMATS, KERNELS
from phyai_backend_cuda.skinny import order
from phyai_backend_cuda.skinny.launch import Shape, shape_for
from phyai_backend_cuda.skinny.layout import operands, pack

(FORMAT,) = FORMATS
BY_ID = {kernel.id: kernel for kernel in KERNELS}
H200 = Environment.simulated("h200", libraries=()).facts().replace({"lib.cupy": "14.2.0"})
CALL = {"shape.M": 50, "shape.N": 1024, "dtype.x": "bf16", "dtype.y": "bf16"}

schemes = st.one_of(
    st.builds(
        TensorQuant, st.just("fp8_e4m3"), st.sampled_from(["channel", "tensor"]),
        scale_dtype=st.sampled_from(["fp32", "bf16", "fp16"]),
    ),
    st.builds(
        TensorQuant, st.sampled_from(["int4", "uint4"]), st.just("group"),
        group_size=st.sampled_from([16, 32, 64, 100]), zero_point=st.sampled_from([None, "int", "float"]),
        scale_dtype=st.sampled_from(["fp32", "bf16"]),
    ),
    st.builds(TensorQuant, st.sampled_from(["int4", "uint4"]), st.sampled_from(["channel", "tensor"])),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(schemes, st.integers(1, 130), st.sampled_from([64, 128, 192, 320]), st.integers(0, 99))
def test_unpacking_gives_what_was_packed(quant: TensorQuant, n: int, k: int, seed: int) -> None:
    assert FORMAT.when.holds({**QuantScheme(quant).facts(), "shape.N": n, "shape.K": k})
    assert round_trip(FORMAT, QuantScheme(quant), n, k, seed=seed) is None


def test_every_scheme_that_the_format_claims_comes_back() -> None:
    report = examine_format(FORMAT, None, Environment.detect("cpu", libraries=()), seconds=2)  # type: ignore[arg-type]
    assert [check.outcome for check in report.checks] == [Outcome.PASSED]


def place_fp8(n: int, k: int, k_chunks: int) -> int:
    """Where the table in ``order`` puts an element of an fp8 weight, in bytes."""
    nt, w, h, g = n // 64, n // 16 % 4, n // 8 % 2, n % 8
    c, i, s, p, q, e = k // 64, k // 32 % 2, k // 16 % 2, k // 8 % 2, k // 2 % 4, k % 2
    at = 0
    for index, size in ((nt, 1), (c, k_chunks), (i, 2), (w, 4), (g, 8), (q, 4), (s, 2), (p, 2), (e, 2), (h, 2)):
        at = at * size + index
    return at


def place_int4(n: int, k: int, k_chunks: int) -> int:
    """The same of an int4 weight, in nibbles."""
    nt, w, h, g = n // 64, n // 16 % 4, n // 8 % 2, n % 8
    c, s, p, q, e = k // 64, k // 16 % 4, k // 8 % 2, k // 2 % 4, k % 2
    at = 0
    for index, size in ((nt, 1), (c, k_chunks), (w, 4), (g, 8), (q, 4), (s, 4), (e, 2), (p, 2), (h, 2)):
        at = at * size + index
    return at


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 127), st.integers(0, 191))
def test_codes_lie_where_the_table_says(n: int, k: int) -> None:
    codes = torch.zeros(128, 192, dtype=torch.uint8)
    codes[n, k] = 5
    assert order.pack_fp8(codes).nonzero().item() == place_fp8(n, k, 3)
    nibbles = order.pack_int4(codes)
    assert torch.stack((nibbles & 15, nibbles >> 4), -1).flatten().nonzero().item() == place_int4(n, k, 3)


def test_sixteen_rows_of_a_tile_lie_together() -> None:
    """So rows of gate and of up can be multiplied side by side without a layout of their own."""
    rows = torch.arange(128, dtype=torch.uint8)[:, None] // 16
    fp8, nibbles = order.pack_fp8(rows.expand(128, 128)), order.pack_int4(rows.expand(128, 128))
    tile = torch.arange(2)[:, None].repeat_interleave(2 * 2, 0)  # two chunks of K, two units of 32
    assert torch.equal(fp8.view(8, 4, 512), (tile * 4 + torch.arange(4))[..., None].expand(8, 4, 512).to(torch.uint8))
    assert torch.equal(nibbles.view(4, 4, 512) & 15, fp8.view(2, 2, 2, 4, 512)[:, :, 0].reshape(4, 4, 512))


@pytest.mark.parametrize(("element", "zero_point"), [("int4", None), ("int4", "int"), ("uint4", "int")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_operands_stand_for_the_weight(element: str, zero_point: str | None, dtype: torch.dtype) -> None:
    """(code - zero point) times scale, read at the table's places, is the dequantized weight."""
    from phyai.quant.realize.dequantize import dequantize

    name = "bf16" if dtype == torch.bfloat16 else "fp16"
    scheme = QuantScheme(TensorQuant(element, "group", group_size=32, zero_point=zero_point, scale_dtype=name))
    weight = quantized_weight(torch.randn(70, 128, generator=torch.Generator().manual_seed(1)), scheme)
    held, want = operands(pack(weight), dtype), dequantize(weight).double()
    nibbles = torch.stack((held["w"] & 15, held["w"] >> 4), -1).flatten().double()
    base = 1024 if dtype == torch.float16 else 128
    for n, k in ((0, 0), (69, 127), (8, 33), (63, 64), (64, 31), (17, 96)):
        pair = ((n // 64 * 4 + k // 32) * 4 + n // 16 % 4) * 16 + n % 8 * 2 + n // 8 % 2
        zero = held["group_zero"][pair].double() - base if zero_point else 8.0
        code = nibbles[place_int4(n, k, 2)]
        assert float((code - zero) * held["group_scale"][pair].double()) == float(want[n, k])


def claims(id: str, k: int, **quant: Any) -> bool:
    bare = {"shape.K": k, **({"dtype.weight": "bf16"} if not quant else {})}
    return BY_ID[id].when.holds(Facts({**H200, **CALL, **bare, **quant}))


def facts_of(quant: TensorQuant) -> dict[str, Any]:
    return dict(QuantScheme(quant).facts())


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 140).map(lambda c: 64 * c), st.sampled_from([0, 32, 64, 128]))
def test_a_row_claims_exactly_what_can_be_cut(k: int, group: int) -> None:
    form = {"group_size": group, "scale_dtype": "bf16"} if group else {}
    int4 = facts_of(TensorQuant("int4", "group" if group else "channel", **form))
    fp8 = facts_of(TensorQuant("fp8_e4m3", "channel"))
    if group:
        cut = shape_for(1024, k, bits=4, group=group)
        assert claims("cuda.gemm.skinny_int4", k, **int4) == (cut is not None)
        return
    for id, quant, bits in (("16bit", {}, 16), ("fp8", fp8, 8), ("int4", int4, 4)):
        assert claims(f"cuda.gemm.skinny_{id}", k, **quant) == (shape_for(1024, k, bits=bits) is not None)


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("inputs", [64, 1024, 2048, 4096, 8192])
def test_a_gated_block_can_be_cut_wherever_it_is_claimed(bits: int, inputs: int) -> None:
    assert shape_for(256, inputs, bits=bits, activation="silu") is not None


FORMS = ({}, {"bits": 8}, {"bits": 4, "group": 128}, {"activation": "silu"})


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("n", "k", "splits"), [(2560, 1024, 2), (1024, 2048, 4), (8192, 1024, 1), (1024, 4096, 8)])
def test_the_experts_products_are_cut_as_measured(n: int, k: int, splits: int, form: dict[str, Any]) -> None:
    shape = shape_for(n, k, **form)
    assert shape is not None
    if (n, form) == (2560, {}):  # 40 blocks: K is not shared, and x lies there as a whole
        assert (shape.block_rows, shape.splits, shape.tiles, shape.x_ring, shape.ring) == (64, 1, 40, 16, 8)
    elif splits == 1 and shape.bits == 16:
        assert (shape.block_rows, shape.splits, shape.tiles) == (128, 2, 64)
    else:
        assert (shape.block_rows, shape.splits, shape.tiles) == (64, splits, n // 64)


@pytest.mark.parametrize(
    ("n", "k", "processors", "rows"),
    [
        (8448, 1024, 132, 128), (8449, 1024, 132, 64), (8456, 1024, 132, 64),  # all processors, and more than there are
        (4352, 1024, 132, 128), (4224, 1024, 132, 64),  # so few rows that K is better shared
        (4352, 640, 132, 128), (4224, 640, 132, 64), (8192, 576, 132, 64), (8192, 512, 132, 64),  # x fits
        (8192, 1152, 132, 64), (8188, 1024, 132, 64), (8192, 1024, 114, 64),
    ],
)  # fmt: skip
def test_two_blocks_take_128_rows_where_x_would_not_fit_beside_64(n: int, k: int, processors: int, rows: int) -> None:
    shape = shape_for(n, k, processors=processors)
    assert shape is not None
    assert shape.block_rows == rows


@pytest.mark.parametrize(
    ("n", "k", "processors", "more", "splits"),
    [
        (4224, 1024, 132, {}, 1), (4288, 1024, 132, {}, 2), (2560, 1024, 79, {}, 1), (2560, 2048, 132, {}, 2),
        (2560, 1024, 132, {"residual": True}, 2), (2560, 1024, 132, {"activation": "silu"}, 2),
        (2560, 1024, 132, {"half": True}, 1), (2560, 1024, 132, {"bits": 8}, 2),
    ],
)  # fmt: skip
def test_k_is_not_shared_where_two_launches_have_a_processor_for_each_block(
    n: int, k: int, processors: int, more: dict[str, Any], splits: int
) -> None:
    shape = shape_for(n, k, processors=processors, **more)
    assert shape is not None
    assert shape.splits == splits
    assert max(map(shape.shared, range(1, 65))) <= 227 * 1024


def test_only_whole_pairs_can_be_run() -> None:
    pair = Shape(n=8192, k=1024, splits=2, block_rows=128)
    assert pair.objection() is None
    for change in ({"splits": 1}, {"splits": 4}, {"bits": 8}, {"k": 384}, {"k": 1152}, {"n": 8188}, {"block_rows": 96}):
        assert attrs.evolve(pair, **change).objection() is not None


def test_a_chip_with_fewer_processors_shares_k_among_fewer_blocks() -> None:
    assert [cut.splits for p in (128, 127, 64, 63, 8) if (cut := shape_for(1024, 4096, processors=p))] == [
        8,
        4,
        4,
        4,
        4,
    ]


@pytest.mark.parametrize("form", FORMS, ids=str)
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 128).map(lambda c: 64 * c), st.integers(1, 64), st.sampled_from([1, 2, 4, 8]))
def test_two_blocks_share_a_processor(form: dict[str, Any], k: int, rows: int, splits: int) -> None:
    """An H200 has 228 KiB of shared memory to a processor, of which the system takes one for each block. A block that
    takes more than half has a processor for itself, and so has that of the launch behind."""
    for block_rows in (64, 128):
        shape = Shape(n=1024, k=k, splits=splits, block_rows=block_rows, **form)
        if shape.objection() is None:
            together = 1 if shape.roomy else 2
            assert together * (shape.shared(rows) + 1024) <= 228 * 1024
            assert together == 2 or 2 * shape.blocks <= 132


@pytest.mark.parametrize("form", FORMS, ids=str)
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 128).map(lambda c: 64 * c), st.sampled_from([1, 2, 4, 8]))
def test_rings_are_as_long_as_the_kernel_asks(form: dict[str, Any], k: int, splits: int) -> None:
    """What it asserts when it is compiled."""
    shape = Shape(n=1024, k=k, splits=splits, **form)
    if shape.objection() is None:
        d = shape.defines(1)
        assert d["HELD"] <= d["CHUNKS"] >= d["XRING"]
        assert d["XRING"] == d["CHUNKS"] or d["XRING"] >= 3
        if shape.bits == 16:
            assert d["RING"] > 1 or d["HELD"] < 2
            assert d["RING"] + d["HELD"] == d["CHUNKS"] or d["RING"] >= 3


@pytest.mark.parametrize(
    ("k", "held"), [(1024, True), (1088, False), (1152, True), (8192, True), (8256, False), (96, False)]
)
def test_k_beyond_what_fits_is_refused(k: int, held: bool) -> None:
    assert claims("cuda.gemm.skinny_16bit", k) == held


@pytest.mark.parametrize(
    ("quant", "row"),
    [
        (TensorQuant("int4", "group", group_size=128, scale_dtype="bf16"), "int4"),
        (TensorQuant("uint4", "group", group_size=64, scale_dtype="bf16", zero_point="int"), "int4"),
        (TensorQuant("int4", "channel"), "int4"), (TensorQuant("fp8_e4m3", "tensor"), "fp8"),
        (TensorQuant("int4", "group", group_size=128), None),  # float32 scales would be rounded
        (TensorQuant("int4", "group", group_size=48, scale_dtype="bf16"), None),
        (TensorQuant("uint4", "channel", zero_point="int"), None), (TensorQuant("int8", "channel"), None),
        (TensorQuant("int4", "group", group_size=128, scale_dtype="bf16", g_idx=True), None),
        (TensorQuant("fp8_e4m3", "block", block_shape=(128, 128)), None),
    ],
)  # fmt: skip
def test_which_schemes_a_row_reads(quant: TensorQuant, row: str | None) -> None:
    held = [id for id in ("fp8", "int4") if claims(f"cuda.gemm.skinny_{id}", 1024, **facts_of(quant))]
    assert held == ([row] if row else [])
