"""How ``csrc/attention_short.cu`` lays operands out and multiplies them, emulated unit by unit and lane by lane.

Layouts of the copy engine, ldmatrix and wgmma are those of the PTX ISA (swizzling modes of tensor copies; fragments of
``wgmma.m64nNk16``; canonical layouts with swizzle, as CUTLASS's ``mma_sm90_desc.hpp`` writes them down).
"""

from __future__ import annotations

import math

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai_backend_cuda.attention.short import MAX_SHARED, groups_for, shared_bytes, widths

Array = npt.NDArray[np.float64]
ROWS = 64


def swizzled(byte: int, width: int) -> int:
    """Where the copy engine and wgmma take byte ``byte`` to be: bits 4 and up XORed with bits 7 and up."""
    bits = {64: 3, 32: 2, 16: 1}[width]
    return byte ^ ((byte >> 7) % (1 << bits) << 4)


@attrs.define
class Part:
    """64 rows of ``width`` elements in shared memory."""

    at: int
    width: int

    def unit(self, row: int, unit: int) -> int:
        """The kernel's ``place``."""
        shift = {64: 0, 32: 1, 16: 2}[self.width]
        return self.at + row * self.width * 2 + (unit ^ (row >> shift & (self.width // 8 - 1))) * 16


class Block:
    """One block of the kernel. Shared memory is an array of elements, NaN until they are written."""

    def __init__(self, head_dim: int, groups: int, keys: int) -> None:
        self.dim, self.groups, self.present = head_dim, groups, keys
        self.chunks = -(-keys // ROWS)
        self.widths = widths(head_dim)
        self.columns = [64] * (len(self.widths) - 1) + [head_dim - 64 * (len(self.widths) - 1)]
        self.tile = sum(ROWS * 2 * width for width in self.widths)
        self.k_at = groups * self.tile
        self.v_at = self.k_at + self.chunks * self.tile
        self.memory = np.full(shared_bytes(head_dim, keys, groups) // 2, np.nan)

    def parts(self, tile: int) -> list[Part]:
        assert tile % 1024 == 0
        return [Part(tile + i * ROWS * 128, width) for i, width in enumerate(self.widths)]

    def load(self, tile: int, source: Array, first: int) -> None:
        """Boxes of the copy engine: what lies outside the tensor is zero."""
        for i, part in enumerate(self.parts(tile)):
            for row in range(ROWS):
                for unit in range(part.width // 8):
                    at = (part.at + swizzled(row * part.width * 2 + unit * 16, part.width)) // 2
                    held = np.zeros(8)
                    if first + row < len(source):
                        there = source[first + row, i * 64 + unit * 8 : i * 64 + unit * 8 + 8]
                        held[: len(there)] = there
                    self.memory[at : at + 8] = held

    def operand(self, part: Part, offset: int, rows: int, columns: int) -> Array:
        """``rows`` × ``columns`` elements of a descriptor that begins ``offset`` bytes into the part: eight rows of
        ``width`` elements to an atom, atoms beside each other, swizzled by where they lie."""
        units = np.zeros((rows, columns))
        for row in range(rows):
            for unit in range(columns // 8):
                byte = part.at + offset + row * part.width * 2 + unit * 16
                at = swizzled(byte, part.width) // 2
                units[row, unit * 8 : unit * 8 + 8] = self.memory[at : at + 8]
        return units

    def steps(self) -> list[tuple[int, int]]:
        """(part, step of sixteen elements) along a row."""
        return [(i, t) for i, columns in enumerate(self.columns) for t in range(-(-columns // 16))]

    def queries(self, warp: int) -> Array:
        """A [lane, step, 4 registers, 2] by ldmatrix: lane l names row l % 8 of matrix l / 8, and gets row l / 4."""
        parts = self.parts(warp // 4 * self.tile)
        a = np.zeros((32, len(self.steps()), 4, 2))
        for n, (i, t) in enumerate(self.steps()):
            rows = []
            for lane in range(32):
                at = parts[i].unit(warp % 4 * 16 + (lane & 15), 2 * t + (lane >> 4)) // 2
                rows.append(self.memory[at : at + 8])
            matrices = np.stack(rows).reshape(4, 8, 8)
            for lane in range(32):
                a[lane, n] = matrices[:, lane >> 2, 2 * (lane & 3) : 2 * (lane & 3) + 2]
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
    """A warp's registers [32, n / 2] of a result [16 × n]."""
    d = np.zeros((32, matrix.shape[1] // 2))
    for lane in range(32):
        g, q = lane >> 2, lane & 3
        for j in range(d.shape[1]):
            d[lane, j] = matrix[g + 8 * (j >> 1 & 1), 8 * (j >> 2) + 2 * q + (j & 1)]
    return d


def across(lanes: Array, join: np.ufunc) -> Array:
    """What the four lanes of a row have together: shuffles by 1 and by 2."""
    return join.reduce(lanes.reshape(8, 4, -1), axis=(1, 2)).repeat(4)


def computed(block: Block, factor: float) -> Array:
    """The kernel from the first product to what it stores: the output as the copy engine reads it."""
    half = np.arange(32) >> 1 & 1
    for warp in range(4 * block.groups):
        a = block.queries(warp)
        greatest, total = np.full((2, 32), -np.inf), np.zeros((2, 32))
        o = [np.zeros((16, columns)) for columns in block.columns]
        for panel in range(-(-block.chunks // 2)):
            scores = []
            for c in range(2 * panel, min(2 * panel + 2, block.chunks)):
                s = np.zeros((16, 64))
                parts = block.parts(block.k_at + c * block.tile)
                for n, (i, t) in enumerate(block.steps()):
                    s += fragment(a[:, n]) @ block.operand(parts[i], t * 32, ROWS, 16).T
                lane, j = np.arange(32)[:, None], np.arange(32)[None]
                key = c * 64 + (j >> 2) * 8 + 2 * (lane & 3) + (j & 1)
                scores.append(np.where(key < block.present, accumulator(s), -np.inf))
            for h in range(2):
                most = across(np.concatenate([s[:, half == h] for s in scores], 1), np.maximum) * factor
                most = np.maximum(most, greatest[h])
                rescale = np.exp2(greatest[h] - most)
                greatest[h], total[h] = most, total[h] * rescale
                for part in o:
                    part[h * 8 : h * 8 + 8] *= rescale[::4, None]
            for c, s in enumerate(scores, 2 * panel):
                p = np.zeros((32, 32))
                for h in range(2):
                    p[:, half == h] = np.exp2(s[:, half == h] * factor - greatest[h][:, None])
                    total[h] += p[:, half == h].sum(1)
                weight = p.reshape(32, 16, 2)  # pairs of neighbours, packed
                for part, held, columns in zip(block.parts(block.v_at + c * block.tile), o, block.columns, strict=True):
                    for t in range(4):
                        b = block.operand(part, t * 16 * part.width * 2, 16, columns)
                        held += fragment(weight[:, 4 * t : 4 * t + 4]) @ b
        scale = [1 / across(total[h], np.add) for h in range(2)]
        for part, held in zip(block.parts(warp // 4 * block.tile), o, strict=True):
            d = accumulator(held)
            for lane in range(32):
                for j in range(0, d.shape[1], 2):
                    h, unit = j >> 1 & 1, j >> 2
                    at = part.unit(warp % 4 * 16 + (lane >> 2) + 8 * h, unit) // 2 + 2 * (lane & 3)
                    block.memory[at : at + 2] = d[lane, j : j + 2] * scale[h][lane]
    return np.concatenate(
        [
            np.concatenate([block.operand(part, 0, ROWS, part.width) for part in block.parts(g * block.tile)], 1)
            for g in range(block.groups)
        ]
    )[:, : block.dim]


@pytest.mark.parametrize(
    ("dim", "queries", "keys", "groups"),
    [(72, 128, 256, 2), (72, 64, 196, 1), (64, 100, 65, 2), (8, 3, 1, 1), (128, 64, 64, 1), (40, 17, 130, 2),
     (96, 64, 300, 1)],
)  # fmt: skip
def test_a_block_computes_attention(dim: int, queries: int, keys: int, groups: int) -> None:
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((n, dim)) for n in (queries, keys, keys))
    block = Block(dim, groups, keys)
    for g in range(groups):
        block.load(g * block.tile, q, g * 64)
    for c in range(block.chunks):
        block.load(block.k_at + c * block.tile, k, c * 64)
        block.load(block.v_at + c * block.tile, v, c * 64)
    assert not np.isnan(block.memory[: (block.v_at + block.chunks * block.tile) // 2]).any()
    scores = q @ k.T * dim**-0.5
    weights = np.exp(scores - scores.max(1, keepdims=True))
    got = computed(block, dim**-0.5 * math.log2(math.e))
    np.testing.assert_allclose(got[:queries], weights @ v / weights.sum(1, keepdims=True), rtol=1e-9, atol=1e-12)
    assert np.isfinite(got).all()  # rows of no query as well


@pytest.mark.parametrize("width", [16, 32, 64])
def test_the_kernel_places_units_where_the_copy_engine_does(width: int) -> None:
    part = Part(2048, width)
    for row in range(ROWS):
        for unit in range(width // 8):
            assert part.unit(row, unit) == 2048 + swizzled(row * width * 2 + unit * 16, width)


@pytest.mark.parametrize("dim", range(8, 136, 8))
def test_what_the_record_claims_fits_into_a_block(dim: int) -> None:
    assert shared_bytes(dim, 512 if dim <= 96 else 320, 2) <= MAX_SHARED
    assert sum(widths(dim)) >= dim
    assert sum(widths(dim)[:-1]) % 64 == 0


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 60), st.integers(1, 300), st.integers(1, 384), st.integers(1, 40), st.integers(1, 16))
def test_a_block_is_cut_in_two_only_where_that_was_faster(
    batch: int, queries: int, keys: int, heads: int, n: int
) -> None:
    groups = groups_for(batch, queries, keys, heads, 8 * n, 132)
    assert groups in (1, 2)
    if groups == 1 and queries > 64 and batch * heads * -(-queries // 64) > 132:
        assert n <= 8
        assert 2 * (shared_bytes(8 * n, keys, 1) + 1024) <= 228 * 1024  # an H200's, of which each block loses one
