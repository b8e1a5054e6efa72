"""How ``csrc/attention_short.cu`` lays operands out, copies and multiplies them, emulated unit by unit, lane by lane.

Layouts of wgmma and ldmatrix are those of the PTX ISA (matrix fragments of ``wgmma.m64nNk16``; canonical layouts
without swizzle, as CUTLASS's ``mma_sm90_desc.hpp`` writes them down).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai_backend_cuda.attention.short import SKEW, groups_for, shared_bytes

Array = npt.NDArray[np.float64]


class Block:
    """One block of the kernel. Shared memory is an array of elements: two bytes each, NaN until they are written."""

    def __init__(self, head_dim: int, chunks: int, groups: int, keys: int) -> None:
        self.units, self.chunks, self.groups, self.present = head_dim // 8, chunks, groups, keys
        self.steps, self.rows, self.keys = (self.units + 1) // 2, 64 * groups, 64 * chunks
        self.threads = 128 * groups
        self.per_pass = self.threads // self.units
        self.q_plane, self.plane = self.rows * 16 + SKEW, self.keys * 16 + SKEW
        self.k_at = self.units * self.q_plane
        self.v_at = self.k_at + self.units * self.plane
        self.zero_at = self.v_at + self.units * self.plane
        self.memory = np.full(shared_bytes(head_dim, keys, groups) // 2, np.nan)
        if self.units % 2:
            self.write(self.zero_at, np.zeros(512))

    def write(self, at: int, values: Array) -> None:
        assert at % 16 == 0
        assert at // 2 + len(values) <= len(self.memory)
        self.memory[at // 2 : at // 2 + len(values)] = values

    def passes(self, rows: int) -> int:
        return -(-rows // self.per_pass)

    def copies(self, plane: int, count: int, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int, int]]:
        """(row, unit, offset in shared memory) of every copy of passes first to last - 1."""
        for thread in range(self.threads):
            row, unit = divmod(thread, self.units)
            for i in range(first, self.passes(count) if last is None else last):
                if row < self.per_pass and row + i * self.per_pass < count:
                    yield row + i * self.per_pass, unit, unit * plane + (row + i * self.per_pass) * 16

    def load(self, at: int, plane: int, count: int, source: Array) -> None:
        for row, unit, offset in self.copies(plane, count):
            there = row < len(source)
            self.write(at + offset, source[row, unit * 8 : unit * 8 + 8] if there else np.zeros(8))

    def core(self, at: int) -> Array:
        """Eight rows of 16 bytes."""
        assert at % 16 == 0
        return self.memory[at // 2 : at // 2 + 64].reshape(8, 8)

    def rows_operand(self, at: int, leading: int, stride: int, n: int) -> Array:
        """B [n × 16] of a K-major descriptor: ((8, n / 8), (8, 2)) : ((16 B, stride), (1, leading))."""
        parts = [[self.core(at + i * stride + j * leading) for j in range(2)] for i in range(n // 8)]
        return np.concatenate([np.concatenate(row, 1) for row in parts], 0)

    def columns_operand(self, at: int, leading: int, stride: int, n: int) -> Array:
        """B [16 × n] of an MN-major descriptor: ((8, n / 8), (8, 2)) : ((1, stride), (16 B, leading))."""
        parts = [[self.core(at + i * stride + j * leading) for i in range(n // 8)] for j in range(2)]
        return np.concatenate([np.concatenate(row, 1) for row in parts], 0)

    def queries(self, warp: int) -> Array:
        """A [lane, step, 4 registers, 2] by ldmatrix: lane l names row l % 8 of matrix l / 8, and gets row l / 4."""
        a = np.zeros((32, self.steps, 4, 2))
        for t in range(self.steps):
            matrices = []
            for lane in range(32):
                unit = 2 * t + (lane >> 4) if 2 * t + 1 < self.units else 2 * t
                at = unit * self.q_plane + (warp * 16 + (lane & 15)) * 16
                matrices.append(self.memory[at // 2 : at // 2 + 8])
            rows = np.stack(matrices).reshape(4, 8, 8)
            for lane in range(32):
                a[lane, t] = rows[:, lane >> 2, 2 * (lane & 3) : 2 * (lane & 3) + 2]
        if self.units % 2:
            a[:, -1, 2:] = 0
        return a


def fragment(a: Array) -> Array:
    """The 16 × 16 matrix that a warp's registers [32, 4, 2] are as A of m64nNk16."""
    matrix = np.zeros((16, 16))
    for lane in range(32):
        g, q = lane >> 2, lane & 3
        for register in range(4):
            row, column = g + 8 * (register & 1), 2 * q + 8 * (register >> 1)
            matrix[row, column : column + 2] = a[lane, register]
    return matrix


def accumulator(matrix: Array) -> Array:
    """A warp's registers [32, 4 · (n / 8)] of a result [16 × n]."""
    d = np.zeros((32, matrix.shape[1] // 2))
    for lane in range(32):
        g, q = lane >> 2, lane & 3
        for j in range(d.shape[1]):
            d[lane, j] = matrix[g + 8 * (j >> 1 & 1), 8 * (j >> 2) + 2 * q + (j & 1)]
    return d


def computed(block: Block, factor: float) -> Array:
    out = np.zeros((block.rows, 8 * block.units))
    for warp in range(4 * block.groups):
        a, s = block.queries(warp), np.zeros((32, block.chunks, 32))
        for c in range(block.chunks):
            total = np.zeros((16, 64))
            for t in range(block.steps):
                at = block.k_at + 2 * t * block.plane + c * 1024
                leading = block.plane if 2 * t + 1 < block.units else block.zero_at - at
                total += fragment(a[:, t]) @ block.rows_operand(at, leading, 128, 64).T
            s[:, c] = accumulator(total)
        lane, j = np.arange(32)[:, None, None], np.arange(32)[None, None]
        key = np.arange(block.chunks)[None, :, None] * 64 + (j >> 2) * 8 + 2 * (lane & 3) + (j & 1)
        s = np.where(key < block.present, s, -np.inf)
        half = (np.arange(32) >> 1) & 1
        p = np.zeros_like(s)
        total_weight = np.zeros((32, 2))
        for h in range(2):
            own = s[:, :, half == h]
            greatest = own.reshape(8, 4, -1).max((1, 2)).repeat(4) * factor
            p[:, :, half == h] = np.exp2(own * factor - greatest[:, None, None])
            total_weight[:, h] = p[:, :, half == h].reshape(8, 4, -1).sum((1, 2)).repeat(4)
        result = np.zeros((16, 8 * block.units))
        for c in range(block.chunks):
            weight = p[:, c].reshape(32, 16, 2)  # pairs of neighbours, packed
            for t in range(4):
                at = block.v_at + c * 1024 + t * 256
                b = block.columns_operand(at, 128, block.plane, 8 * block.units)
                result += fragment(weight[:, 4 * t : 4 * t + 4]) @ b
        o = accumulator(result)
        for lane_ in range(32):
            for j_ in range(o.shape[1]):
                h = j_ >> 1 & 1
                row, column = warp * 16 + (lane_ >> 2) + 8 * h, 8 * (j_ >> 2) + 2 * (lane_ & 3) + (j_ & 1)
                out[row, column] = o[lane_, j_] / total_weight[lane_, h]
    return out


@pytest.mark.parametrize(
    ("dim", "queries", "keys", "groups"),
    [(72, 128, 256, 2), (72, 64, 196, 1), (64, 100, 65, 2), (8, 3, 1, 1), (128, 64, 64, 1), (40, 17, 130, 2)],
)
def test_a_block_computes_attention_from_where_its_copies_put_things(
    dim: int, queries: int, keys: int, groups: int
) -> None:
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((n, dim)) for n in (queries, keys, keys))
    block = Block(dim, -(-keys // 64), groups, keys)
    block.load(0, block.q_plane, block.rows, q)
    block.load(block.k_at, block.plane, block.keys, k)
    block.load(block.v_at, block.plane, block.keys, v)
    assert not np.isnan(block.memory[: 64 * groups * 8]).any()
    scale = dim**-0.5
    scores = q @ k.T * scale
    weights = np.exp(scores - scores.max(1, keepdims=True))
    want = weights @ v / weights.sum(1, keepdims=True)
    got = computed(block, scale * math.log2(math.e))
    np.testing.assert_allclose(got[:queries], want, rtol=1e-9, atol=1e-12)
    assert np.isfinite(got).all()  # rows of no query as well


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 16), st.integers(1, 4), st.sampled_from([1, 2]))
def test_every_unit_is_copied_once_and_chunks_by_the_group_that_is_waited_for(
    units: int, chunks: int, groups: int
) -> None:
    block = Block(8 * units, chunks, groups, 64 * chunks)
    for plane, count in ((block.q_plane, block.rows), (block.plane, block.keys)):
        copies = list(block.copies(plane, count))
        assert sorted((row, unit) for row, unit, _ in copies) == [(r, u) for r in range(count) for u in range(units)]
        assert len({offset for *_, offset in copies}) == len(copies)
        assert max(offset for *_, offset in copies) + 16 <= units * plane
    first = 0
    for chunk in range(chunks):
        last = block.passes(64 * (chunk + 1))
        arrived = {row for row, *_ in block.copies(block.plane, block.keys, 0, last)}
        assert arrived >= set(range(64 * (chunk + 1)))
        assert last >= first
        first = last


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("units", [8, 9, 16])
def test_eight_lanes_that_copy_at_once_write_to_different_banks(units: int, groups: int) -> None:
    block = Block(8 * units, 4, groups, 256)
    places = [(thread % units) * block.plane + thread // units * 16 for thread in range(block.per_pass * units)]
    for lane in range(0, len(places) // 8 * 8, 8):
        assert len({at // 16 % 8 for at in places[lane : lane + 8]}) == 8


@pytest.mark.parametrize("units", range(1, 17))
def test_the_output_fits_over_what_is_no_longer_read(units: int) -> None:
    """Rows are staged where queries and keys were; eight rows of four lanes each write to 32 different banks."""
    pitch = units * 16 + (0 if units % 2 else 16)
    for groups in (1, 2):
        block = Block(8 * units, 1, groups, 1)
        assert block.rows * pitch <= block.v_at
    assert len({(g * pitch + q * 4) // 4 % 32 for g in range(8) for q in range(4)}) == 32


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 60), st.integers(1, 300), st.integers(1, 40))
def test_blocks_of_one_warpgroup_have_a_processor_each_or_no_second_tile(batch: int, queries: int, heads: int) -> None:
    groups = groups_for(batch, queries, heads, 132)
    assert groups in (1, 2)
    if groups == 1 and queries > 64:
        assert batch * heads * -(-queries // 64) <= 132


def test_the_polynomial_is_a_power_of_two() -> None:
    """Of ``power_of_two_fma``: in float32, against float64; far below, nothing that a 16-bit weight would show."""
    x = np.linspace(-126, 0, 100_001).astype(np.float32)
    n = (x + np.float32(12582912)) - np.float32(12582912)
    r = x - n
    c3, c2, c1 = (np.float32(c) for c in (0.05517167, 0.24261112, 0.69326099))
    y = (((c3 * r + c2) * r + c1) * r + np.float32(0.99992807)).astype(np.float64) * np.exp2(n.astype(np.float64))
    assert np.abs(y / np.exp2(x.astype(np.float64)) - 1).max() < 8e-5
