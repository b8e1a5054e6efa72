"""Where ``csrc/skinny_pair.cu`` puts what, followed on the CPU: pieces of W, chunks of x, fragments, whole lines.

The numbers are those of the source; the arithmetic of places is repeated here, so that it can be run.
"""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai_backend_cuda.runtime.nvrtc import SOURCES
from phyai_backend_cuda.skinny.launch import PAIR_CHUNKS, PAIR_RING, Shape

SOURCE = (SOURCES / "skinny_pair.cu").read_text(encoding="utf-8")
UNIT = 8192
each_form = pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
each_size = pytest.mark.parametrize("chunks", range(PAIR_CHUNKS[0], PAIR_CHUNKS[1] + 1))


def constant(name: str, gated: bool) -> int:
    found = re.search(rf"\b{name} = (?:GATED \? (\d+) : )?(\d+)\b", SOURCE)
    assert found is not None
    return int(found[1] if gated and found[1] else found[2])


def row(gated: bool, n: int, tile: int, r: int) -> int:
    """Row of W that is row r of tile ``tile``."""
    if gated:
        return (r >> 3 & 1) * (n // 2) + min(tile * 32 + (r >> 4) * 8 + (r & 7), n // 2 - 1)
    return min(tile * 64 + r, n - 1)


def output(gated: bool, tile: int, warp: int, g: int, h: int) -> int:
    """Column of y that a thread's row ``16 * warp + g + 8 * h`` of W is for; with gates it is gate or up of that."""
    return tile * 32 + warp * 8 + g if gated else tile * 64 + warp * 16 + g + 8 * h


def swizzled(r: int, unit: int) -> int:
    """Of a row of 128 bytes, as wgmma and ldmatrix have it."""
    return r * 128 + ((unit ^ (r & 7)) << 4)


def waiting(gated: bool, m: int, unit: int) -> int:
    return m * (64 if gated else 128) + ((unit ^ (m >> 1 & 3 if gated else m & 7)) << 4)


def test_host_and_kernel_agree_on_shared_memory() -> None:
    assert constant("RING", False) == PAIR_RING
    assert constant("UNIT", False) == UNIT
    assert Shape(n=8192, k=1024, splits=2, block_rows=128).shared(64) == PAIR_RING * UNIT + 8 * 64 * 128 + 16


@each_form
@each_size
def test_units_of_w_are_held_before_their_slot_is_asked_for_again(chunks: int, gated: bool) -> None:
    flight, ring, units = constant("FLIGHT", gated), constant("RING", gated), 2 * chunks
    assert flight < ring
    slots: dict[int, int] = {}
    held: list[int] = []
    for u in range(units):
        ready = u - flight  # waited for, then a barrier: all that is held is held by every warp
        replaced = slots.get(u % ring)
        assert replaced is None or replaced in held
        slots[u % ring] = u
        if 0 <= ready < units - ring:
            assert slots[ready % ring] == ready
            held.append(ready)
    assert held == list(range(units - ring))
    assert sorted(slots.values()) == list(range(units - ring, units))  # what wgmma reads from shared memory
    assert all(slots[u % ring] == u for u in slots.values())
    assert all((2 * c + 1) % ring == 2 * c % ring + 1 for c in range(chunks))  # both tiles by one descriptor


@each_form
@settings(max_examples=15, deadline=None)
@given(pairs=st.integers(1, 12), chunks=st.integers(*PAIR_CHUNKS), cut=st.integers(0, 15), spare=st.integers(0, 2))
def test_every_weight_is_multiplied_once(gated: bool, pairs: int, chunks: int, cut: int, spare: int) -> None:
    n = pairs * 128 - (0 if gated else cut * 8)
    columns, met = n // 2 if gated else n, torch.zeros(n, 2 * chunks, dtype=torch.int32)
    for y in range(pairs + spare):
        for split in range(2):
            walked = [split * chunks + c for c in range(chunks)]
            for tile in (2 * y, 2 * y + 1):
                for r in range(64):
                    column = output(gated, tile, r // 16, r % 8, r // 8 % 2)
                    at = row(gated, n, tile, r)
                    assert 0 <= at < n
                    if column < columns:  # else it is not stored
                        assert at % columns == column
                        met[at, walked] += 1
    assert bool((met == 1).all())


@each_form
@pytest.mark.parametrize("eights", range(1, 9))
def test_outputs_come_to_lie_in_whole_lines(gated: bool, eights: int) -> None:
    """Through fragments, stmatrix with matrices turned, and 16 bytes of a row at a time."""
    columns, units, matrices = (32, 4, eights) if gated else (64, 8, 2 * eights)
    want = torch.arange(1, 8 * eights * columns + 1).view(8 * eights, columns)
    memory: dict[int, int] = {}
    for warp in range(4):

        def fragment(matrix: int, g: int, m: int, warp: int = warp) -> int:
            """Row g of W by row m of x of one 8 × 8 matrix; zeros beyond the last."""
            eight, h = (matrix, 0) if gated else divmod(matrix, 2)
            return int(want[eight * 8 + m, output(gated, 0, warp, g, h)]) if matrix < matrices else 0

        for first in range(0, matrices, 4):
            for lane in range(32):
                matrix, i = first + lane // 8, lane % 8
                m, unit = (matrix if gated else matrix // 2) * 8 + i, warp if gated else warp * 2 + matrix % 2
                at = waiting(gated, m, unit)
                assert at + 16 <= UNIT  # in the first unit of W, whose products are done
                for j in range(8):
                    assert memory.setdefault(at + 2 * j, value := fragment(matrix, j, i)) == value
    got = torch.zeros_like(want)
    for place in range(8 * eights * units):
        m, unit = divmod(place, units)
        got[m, unit * 8 : unit * 8 + 8] = torch.tensor([memory[waiting(gated, m, unit) + 2 * j] for j in range(8)])
    assert torch.equal(got, want)


@each_form
def test_lines_are_stored_and_loaded_without_conflicts(gated: bool) -> None:
    """Eight lanes at a time meet all 32 banks, as they store eight rows of a matrix and as they load whole lines."""
    units = 4 if gated else 8
    stored = [[waiting(gated, m + i, unit) for i in range(8)] for m in range(0, 64, 8) for unit in range(units)]
    loaded = [[waiting(gated, *divmod(place + lane, units)) for lane in range(8)] for place in range(0, 64 * units, 8)]
    for addresses in stored + loaded:
        assert len({at // 16 % 8 for at in addresses}) == 8


def test_a_fragment_of_w_is_the_rows_that_wgmma_takes() -> None:
    """ldmatrix at the places of copies: register 4s + i of a thread is rows g (+ 8), K 16s + 2q (+ 8)."""
    place = {swizzled(r, unit) + 2 * e: (r, unit * 8 + e) for r in range(64) for unit in range(8) for e in range(8)}
    for warp in range(4):
        for s in range(4):
            named = [warp * 2048 + swizzled(lane & 15, s * 2 + (lane >> 4)) for lane in range(32)]
            for lane in range(32):
                g, q = divmod(lane, 4)
                for i in range(4):
                    at = named[8 * i + g] + 4 * q
                    assert place[at] == (warp * 16 + g + 8 * (i % 2), 16 * s + 2 * q + 8 * (i // 2))
