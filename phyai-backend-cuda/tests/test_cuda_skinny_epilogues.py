"""Which thread of ``csrc/skinny.cu`` has which output in its epilogues, emulated as the sources say."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.environment import Environment
from phyai_backend_cuda.records.skinny_fused import KERNELS
from phyai_backend_cuda.skinny.epilogues import Heads
from phyai_backend_cuda.skinny.launch import PAIR_ROWS, Shape, shape_for

BY_ID = {kernel.id: kernel for kernel in KERNELS}
H200 = Environment.simulated("h200", libraries=()).facts().replace({"lib.cupy": "14.2.0"})


class Sixteens:
    """``Sixteens`` of ``skinny_epilogues.cuh``."""

    def __init__(self, of: int, heads: Heads) -> None:
        pair = min(of, heads.outputs // 32 - 1)
        self.head, self.within = divmod(pair, heads.head_dim // 32)
        self.turns = self.head < heads.heads + heads.kv_heads and self.within * 32 < heads.rotary_dim
        self.halves = heads.neox and self.turns
        self.rotary = heads.rotary_dim

    def begin(self, half: int) -> int:
        return self.within * 16 + half * (self.rotary // 2) if self.halves else self.within * 32 + half * 16


def weight_row(tile: int, r: int, heads: Heads) -> int:
    """``Block::row``: the row of W that is row r of a block's 64."""
    at = Sixteens(tile * 2 + (r >> 4 & 1), heads)
    return (at.head * (heads.head_dim // 16) + at.begin(r >> 5) // 16) * 16 + (r & 15)


def stored(heads: Heads, rows: int, splits: int) -> Counter[tuple[int, int]]:
    """How often each (row of x, output) is stored, with the checks of what is stored there on the way."""
    eights = -(-rows // 8)
    share = -(-eights // splits)
    found: Counter[tuple[int, int]] = Counter()
    for tile in range(-(-heads.outputs // 64)):
        for split, warp, lane, turn in product(splits, 4, 32, (share + 1) // 2):
            g, q = lane >> 2, lane & 3
            at = Sixteens(tile * 2 + (warp & 1), heads)
            j = 2 * turn + warp // 2
            m = (split * share + j) * 8 + g
            for half in range(2):
                # the thread reads the sums of the thread `warp & 1`, or two warps on: rows g and g + 8 of their sixteen
                source = (warp & 1) + 2 * half
                for e in range(4):
                    row = weight_row(tile, source * 16 + g + 8 * (e // 2), heads)
                    assert row % heads.head_dim == at.begin(half) + g + 8 * (e // 2)
                    assert row // heads.head_dim == at.head
                    if at.turns and heads.neox:  # its partner is in the other half, at the same frequency
                        other = weight_row(tile, ((warp & 1) + 2 * (1 - half)) * 16 + g + 8 * (e // 2), heads)
                        assert abs(other - row) == heads.rotary_dim // 2
                        assert min(row, other) % heads.head_dim < heads.rotary_dim // 2
                # movmatrix: thread (g, q) then has row g of x, outputs 2q and 2q + 1, and eight further on
                if j < share and m < rows and tile * 2 + (warp & 1) < heads.outputs // 32:
                    begin = at.head * heads.head_dim + at.begin(half) + 2 * q
                    found.update((m, begin + d) for d in (0, 1, 8, 9))
    return found


def product(*sizes: int) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, sizes))


some_heads = st.builds(
    lambda heads, kv, size, rotary, neox: Heads(
        heads=heads, kv_heads=kv, head_dim=32 * size, rotary_dim=32 * min(size, rotary), neox=neox
    ),
    st.integers(1, 3), st.integers(1, 2), st.integers(1, 4), st.integers(1, 4), st.booleans(),
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(some_heads, st.integers(1, 64), st.sampled_from([1, 2, 4, 8]))
def test_every_output_of_every_head_is_stored_once(heads: Heads, rows: int, splits: int) -> None:
    found = stored(heads, rows, splits)
    assert set(found) == {(m, n) for m in range(rows) for n in range(heads.outputs)}
    assert set(found.values()) == {1}


def test_neighbours_rotate_within_four_lanes() -> None:
    """Outputs 2i and 2i + 1 are rows g and g + 1 of one sixteen, g even: lanes that differ in bit 2."""
    heads = Heads(heads=1, kv_heads=1, head_dim=96, rotary_dim=30, neox=False)
    for tile, r in product(-(-heads.outputs // 64), 64):
        if tile * 2 + (r >> 4 & 1) < heads.outputs // 32:
            assert weight_row(tile, r, heads) ^ 1 == weight_row(tile, r ^ 1, heads)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 64), st.sampled_from([1, 2, 4, 8]), st.sampled_from([8, 72, 128]))
def test_a_thread_adds_to_what_it_stores(rows: int, splits: int, n: int) -> None:
    """``Branch``: what a thread reads of the residual, turned, is what its sums are added to; each is read once."""
    eights = -(-rows // 8)
    share = -(-eights // splits)
    read: Counter[tuple[int, int]] = Counter()
    for tile, split, warp, turn in product(-(-n // 64), splits, 4, share):
        eight = (split * share + turn) * 8
        column = tile * 64 + warp * 16
        words = {(g, q, h): (eight + g, column + 2 * q + 8 * h) for g, q, h in product(8, 4, 2)}
        for (g, q, h), (m, at) in words.items():
            if turn < share and m < rows and at < n:
                read.update([(m, at), (m, at + 1)])
            for e in range(2):  # of sum v[2h + e]: row 2q + e of x, output g + 8h
                m, at = words[2 * q + e, g // 2, h]  # transposed: element (g, q) of a matrix comes from (2q + e, g / 2)
                assert (m, at + g % 2) == (eight + 2 * q + e, column + g + 8 * h)
    assert set(read) == {(m, at) for m in range(rows) for at in range(n)}
    assert set(read.values()) == {1}


def test_what_cannot_be_heads_is_refused() -> None:
    for heads, said in (
        (Heads(heads=1, kv_heads=1, head_dim=72, rotary_dim=64), "head_dim=72"),
        (Heads(heads=1, kv_heads=1, head_dim=64, rotary_dim=48), "rotary_dim=48"),
        (Heads(heads=1, kv_heads=1, head_dim=64, rotary_dim=96), "rotary_dim=96"),
        (Heads(heads=1, kv_heads=1, head_dim=64, rotary_dim=31, neox=False), "rotary_dim=31"),
    ):
        why = Shape(n=heads.outputs, k=512, heads=heads).objection()
        assert why is not None
        assert said in why


def test_epilogues_exclude_each_other_and_pairs() -> None:
    assert Shape(n=1024, k=1024, activation="silu", residual=True).objection() is not None
    assert Shape(n=8192, k=1024, splits=2, block_rows=PAIR_ROWS, residual=True).objection() is not None
    cut = shape_for(8192, 1024, residual=True)
    assert cut is not None
    assert not cut.paired


HEADS = {
    "shape.T": 50, "shape.K": 1024, "attrs.head_dim": 256, "shape.head_dim": 256, "shape.rotary_dim": 256,
    "attrs.style": "neox", "dtype.cos_sin": "fp32",
    **{f"dtype.{name}": "bf16" for name in ("x", "weight", "k_cache", "v_cache", "q")},
}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "held"),
    [
        ({}, True), ({"shape.T": 64}, True), ({"shape.T": 65}, False), ({"dtype.cos_sin": "fp64"}, False),
        ({"shape.rotary_dim": 64}, True), ({"shape.rotary_dim": 48}, False),
        ({"shape.rotary_dim": 30, "attrs.style": "interleaved"}, True), ({"dtype.k_cache": "fp16"}, False),
        ({"attrs.head_dim": 80, "shape.head_dim": 80}, False), ({"dtype.bias": "bf16"}, True),
        ({"dtype.bias": "fp16"}, False), ({"shape.K": 1000}, False), ({"parts.qkv.quant.scheme": "w8a16"}, False),
    ],
)  # fmt: skip
def test_which_calls_the_heads_of_16_bit_weights_claim(facts: dict[str, Any], held: bool) -> None:
    assert BY_ID["cuda.qkv_rope_kv_write.skinny_16bit"].when.holds({**H200, **HEADS, **facts}) == held
