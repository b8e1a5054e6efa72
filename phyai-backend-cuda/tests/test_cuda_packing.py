"""The expert kernel's layouts, against their definitions element by element."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai_backend_cuda.expert.tiles import pack_tiles, rope_pairs, unpack_tiles
from phyai_backend_cuda.expert.weights import (
    BLOCKS,
    HEAD_DIM,
    HEADS,
    INTERMEDIATE,
    RANKS,
    LayerWeights,
    attention_order,
    first_octet,
    fragment_order,
    gate_up_order,
    modulation_tables,
    pack_by_rank,
    pack_qkv,
    qkv_order,
    rotate_chunks,
)

WIDTH = 1024


@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([8, 16, 64]))
@settings(max_examples=20, deadline=None)
def test_a_tile_element_lies_where_the_swizzle_says(blocks: int, chunks: int, rows: int) -> None:
    matrix = torch.arange(blocks * rows * chunks * 64).view(blocks * rows, chunks * 64)
    tiles = pack_tiles(matrix, rows)
    for row in range(0, blocks * rows, 3):
        for col in range(0, chunks * 64, 7):
            unit = (col % 64 // 8) ^ (row % 8)
            assert tiles[row // rows, col // 64, row % rows, unit * 8 + col % 8] == matrix[row, col]
    assert torch.equal(unpack_tiles(tiles), matrix)


@pytest.mark.parametrize(
    ("order", "size"),
    [
        (qkv_order(), (HEADS + 2) * HEAD_DIM),
        (gate_up_order(), 2 * INTERMEDIATE),
        (attention_order(), HEADS * HEAD_DIM),
        (fragment_order(256), 256),
    ],
)
def test_an_order_is_a_permutation(order: torch.Tensor, size: int) -> None:
    assert torch.equal(order.sort().values, torch.arange(size))


def test_rope_partners_are_neighbours() -> None:
    pairs = rope_pairs(256).view(-1, 2)
    assert torch.equal(pairs[:, 1] - pairs[:, 0], torch.full((128,), 128))


def test_octets_cover_qkv_once() -> None:
    starts = [first_octet(b) for b in range(BLOCKS)] + [320]
    assert starts[0] == 0
    assert {b - a for a, b in itertools.pairwise(starts)} == {2, 3}


def test_rotation_starts_every_block_at_its_own_chunk() -> None:
    tiles = torch.arange(12).view(3, 4, 1)
    rotated = rotate_chunks(tiles, torch.tensor([0, 1, 5]))[..., 0]
    assert rotated.tolist() == [[0, 1, 2, 3], [5, 6, 7, 4], [9, 10, 11, 8]]


def test_a_block_of_the_down_weight_is_its_rows_and_its_eighth_of_k() -> None:
    weight = torch.arange(WIDTH * 512).view(WIDTH, 512)
    flat = pack_by_rank(weight).view(BLOCKS, 1, 64, 64)
    for block in (0, 17, 127):
        rank, cluster = block // 16, block % 16
        mine = weight[cluster * 64 : cluster * 64 + 64, rank * 64 : rank * 64 + 64]
        want = pack_tiles(mine[:, fragment_order(64)], 64)[0]
        assert torch.equal(flat[block], want)
    assert RANKS * 16 == BLOCKS


def test_packed_qkv_of_a_block_holds_its_octets_chunk_by_chunk() -> None:
    weight = torch.arange((HEADS + 2) * HEAD_DIM * WIDTH).view(-1, WIDTH)
    flat = pack_qkv(weight)
    ordered = weight[qkv_order()][:, fragment_order(WIDTH)]
    for block in (0, 5, 64, 127):
        first, n = first_octet(block), 3 if block < 64 else 2
        start = first * 16 * 512
        chunk = (block // 4) % 16  # the first that this block reads
        part = flat[start : start + n * 512].view(n, 8, 64)
        want = pack_tiles(ordered[first * 8 : (first + n) * 8, chunk * 64 : chunk * 64 + 64].contiguous(), 8)[:, 0]
        assert torch.equal(part, want)


def test_tables_are_what_the_norms_would_add() -> None:
    torch.manual_seed(0)
    layers = [
        LayerWeights(torch.randn(2560, 1024), torch.empty(0), torch.randn(8192, 1024), torch.empty(0)) for _ in range(2)
    ]
    attention, mlp, final = torch.randn(3, 2, 3072), torch.randn(3, 2, 3072), torch.randn(3, 3072)
    out_weight, out_bias = torch.randn(32, 1024), torch.randn(32)
    tables = modulation_tables(layers, attention, mlp, final, out_weight, out_bias)
    want = attention[2, 1, 1024:2048].double() @ layers[1].qkv.double().T
    torch.testing.assert_close(tables["shift_qkv"][2, 1].double(), want[qkv_order()], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(tables["gate2"][1, 0], mlp[1, 0, 2048:])
    torch.testing.assert_close(tables["scale_f"], 1 + final[:, :1024])
