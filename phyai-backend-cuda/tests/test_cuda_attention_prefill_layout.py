"""``csrc/attention_prefill.cu`` on a CPU: its addresses, fragments, ring and exchange, step by step in numpy."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from phyai_backend_cuda.attention.paged import tiles_of
from phyai_backend_cuda.attention.prefill import HEAD_DIM, KEYS, ROWS, SLOTS, shared_bytes

Array = np.ndarray
CHUNKS, Q_CHUNK = HEAD_DIM // 64, ROWS * 128
THREAD = np.arange(128)
LANE, WARP = THREAD % 32, THREAD // 32
G, Q = LANE // 4, LANE % 4
#: Row and column of register e of a thread in an accumulator of 64 rows.
ROW = lambda e: WARP * 16 + G + 8 * (e // 2 % 2)  # noqa: E731
COLUMN = lambda e: e // 4 * 8 + 2 * Q + e % 2  # noqa: E731


class Memory:
    """Shared memory whose 16-bit elements hold any number."""

    def __init__(self, size: int) -> None:
        self.data = np.full(size // 2, np.nan)

    def box(self, at: int, rows: Array) -> None:
        """The copy engine's rows of 128 bytes, swizzled by their addresses."""
        r, unit, e = np.meshgrid(np.arange(len(rows)), np.arange(8), np.arange(8), indexing="ij")
        logical = at + r * 128 + unit * 16
        self.data[(logical ^ ((logical >> 7 & 7) << 4)) // 2 + e] = rows.reshape(len(rows), 8, 8)

    def logical(self, address: Array) -> Array:
        """What wgmma reads at an address."""
        return self.data[(address ^ ((address >> 7 & 7) << 4)) // 2]


def gmma_desc(address: int, leading: int = 16) -> int:
    return (address & 0x3FFFF) >> 4 | (leading >> 4) << 16 | (1024 >> 4) << 32 | 1 << 62


def k_major(memory: Memory, desc: int, rows: int) -> Array:
    start = (desc & 0x3FFF) << 4
    r, k = np.meshgrid(np.arange(rows), np.arange(16), indexing="ij")
    return memory.logical(start + r // 8 * ((desc >> 32 & 0x3FFF) << 4) + r % 8 * 128 + 2 * k)


def mn_major(memory: Memory, desc: int, columns: int) -> Array:
    start, leading, stride = (desc & 0x3FFF) << 4, (desc >> 16 & 0x3FFF) << 4, (desc >> 32 & 0x3FFF) << 4
    k, n = np.meshgrid(np.arange(16), np.arange(columns), indexing="ij")
    return memory.logical(start + n // 64 * leading + k // 8 * stride + k % 8 * 128 + n % 64 * 2)


def fragments(matrix: Array) -> Array:
    return np.stack([matrix[ROW(e), COLUMN(e)] for e in range(matrix.shape[1] // 2)])


def of_fragments(registers: Array) -> Array:
    matrix = np.full((64, 2 * len(registers)), np.nan)
    for e in range(len(registers)):
        matrix[ROW(e), COLUMN(e)] = registers[e]
    return matrix


def a_operand(registers: Array) -> Array:
    """[64 × 16] of eight values a thread: wgmma's order of A, pairs (row, columns), (row + 8), (columns + 8), both."""
    matrix = np.full((64, 16), np.nan)
    for e in range(8):
        matrix[WARP * 16 + G + 8 * (e // 2 % 2), 2 * Q + e % 2 + 8 * (e // 4)] = registers[e]
    return matrix


def matrix_rows(i: int, own: int) -> Array:
    """The 16 bytes that a lane names for unit 2·i and its neighbour, of stmatrix and ldmatrix."""
    r, unit = WARP * 16 + (LANE // 8 & 1) * 8 + LANE % 8, 2 * i + LANE // 16
    return own + unit // 8 * Q_CHUNK + r * 128 + ((unit % 8 ^ (r & 7)) << 4)


def tile(memory: Memory, at: int, values: Array, keys: int) -> None:
    for c in range(CHUNKS):
        memory.box(at + c * keys * 128, values[:, c * 64 : c * 64 + 64])


@pytest.mark.parametrize("mine", [0, 1])
def test_products_read_what_the_copy_engine_wrote(mine: int) -> None:
    generator, keys = np.random.default_rng(mine), KEYS
    q, k, v = (generator.normal(size=(n, HEAD_DIM)) for n in (ROWS, keys, keys))
    ring = ROWS * HEAD_DIM * 2
    memory, slot = Memory(shared_bytes(2)), keys * HEAD_DIM * 2
    for c in range(CHUNKS):
        memory.box(c * Q_CHUNK, q[:, c * 64 : c * 64 + 64])
    tile(memory, ring + 2 * slot, k, keys)
    tile(memory, ring + slot, v, keys)
    own, chunk = mine * 8192, keys * 128
    a, b = gmma_desc(own), gmma_desc(ring + 2 * slot)
    s = np.zeros((64, keys))
    for i in range(HEAD_DIM // 16):
        at_a, at_b = a + i // 4 * (Q_CHUNK // 16) + i % 4 * 2, b + i // 4 * (chunk // 16) + i % 4 * 2
        rows = k_major(memory, at_a, 64)
        s += rows @ k_major(memory, at_b, keys).T
    wanted = q[mine * 64 : mine * 64 + 64] @ k.T
    np.testing.assert_allclose(s, wanted)
    weights = fragments(s)
    b = gmma_desc(ring + slot, chunk)
    o = np.zeros((64, HEAD_DIM))
    for i in range(keys // 16):
        o += a_operand(weights[8 * i : 8 * i + 8]) @ mn_major(memory, b + 128 * i, HEAD_DIM)
    np.testing.assert_allclose(o, wanted @ v)


def test_columns_past_the_last_key_are_the_masked_ones() -> None:
    scores = fragments(np.tile(np.arange(64.0), (64, 1)))
    for there in (1, 7, 8, 33, 63):
        masked = np.stack([np.where(i // 4 * 8 + 2 * Q + i % 2 >= there, -1, scores[i]) for i in range(32)])
        np.testing.assert_array_equal(of_fragments(masked) >= 0, np.tile(np.arange(64) < there, (64, 1)))


def test_zeros_cover_the_rows_past_the_last_key_and_no_others() -> None:
    memory, keys = Memory(64 * HEAD_DIM * 2), 64
    tile(memory, 0, np.ones((64, HEAD_DIM)), keys)
    for u in range(20 * 8, keys * 8):
        for c in range(CHUNKS):
            at = (c * keys * 128 + u * 16) // 2
            memory.data[at : at + 8] = 0
    seen = np.concatenate([mn_major(memory, gmma_desc(0, keys * 128) + 128 * i, HEAD_DIM) for i in range(4)])
    np.testing.assert_array_equal(seen, np.repeat((np.arange(64) < 20)[:, None], HEAD_DIM, 1))


@pytest.mark.parametrize("mine", [0, 1])
def test_rows_go_out_as_whole_lines(mine: int) -> None:
    o = fragments(np.arange(64 * HEAD_DIM, dtype=float).reshape(64, HEAD_DIM))
    memory, own = Memory(ROWS * HEAD_DIM * 2), mine * 8192
    written = set()
    for i in range(16):
        named = matrix_rows(i, own)
        for warp, matrix, lane in itertools.product(range(4), range(4), range(32)):
            line = named[warp * 32 + matrix * 8 + lane // 4] // 2
            for e in range(2):
                memory.data[line + 2 * (lane % 4) + e] = o[8 * i + 2 * matrix + e, warp * 32 + lane]
                written.add((line + 2 * (lane % 4) + e) * 2)
    assert all(at // 8192 % 2 == mine for at in written)  # this warpgroup's rows of Q alone
    for row in range(64):
        for lane in range(32):
            at = own + lane // 8 * Q_CHUNK + row * 128 + ((lane % 8 ^ (row % 16 & 7)) << 4)
            expected = row * HEAD_DIM + lane * 8 + np.arange(8)
            np.testing.assert_array_equal(memory.data[at // 2 : at // 2 + 8], expected)


def test_pieces_of_a_sum_fill_the_rows_of_one_warpgroup() -> None:
    for mine in (0, 1):
        places = {
            mine * 8192 + i // 4 * Q_CHUNK + i % 4 * 2048 + thread * 16 for i in range(16) for thread in range(128)
        }
        rows = {c * Q_CHUNK + mine * 8192 + at for c in range(CHUNKS) for at in range(0, 8192, 16)}
        assert places == rows


class Barrier:
    """An mbarrier: arrivals and bytes that are still to come."""

    def __init__(self, count: int) -> None:
        self.count, self.pending, self.bytes, self.phase = count, count, 0, 0

    def settle(self) -> None:
        assert self.pending >= 0
        if not self.pending and not self.bytes:
            self.phase, self.pending = self.phase + 1, self.count

    def arrive(self, expected: int = 0) -> None:
        self.pending -= 1
        self.bytes += expected
        self.settle()

    def complete(self, got: int) -> None:
        self.bytes -= got
        self.settle()

    def passed(self, parity: int) -> bool:
        return self.phase % 2 != parity


def items_of(tiles: int) -> list[tuple[str, int]]:
    """In the order of ``fetch``."""
    items, found = 2 * tiles, []
    for i in range(items):
        value = i == items - 1 or (i > 0 and i % 2 == 0)
        j = 0 if i == 0 else items // 2 - 1 if i == items - 1 else i // 2 - 1 if value else (i + 1) // 2
        found.append(("v" if value else "k", j))
    return found


def run_ring(tiles: int, slots: int, choose: random.Random) -> None:
    full, empty = ([Barrier(count) for _ in range(slots)] for count in (1, 2))
    start = Barrier(1)  # of the first keys, which `full` does not count
    held: list[tuple[str, int] | None] = [None] * slots
    copies: list[Callable[[], None]] = []
    reading = [0] * slots

    def copy(slot: int, item: tuple[str, int]) -> Callable[[], None]:
        def done() -> None:
            assert not reading[slot], "a tile is written over while it is read"
            held[slot] = item
            (start if item == ("k", 0) else full[slot]).complete(1)

        return done

    def producer() -> Iterator[Callable[[], bool] | None]:
        for i, item in enumerate(items_of(tiles)):
            slot, phase = i % slots, i // slots % 2
            if i >= slots:
                yield lambda s=slot, p=phase: empty[s].passed(p ^ 1)
            full[slot].arrive(expected=1 if i else 0)
            if not i:
                start.arrive(expected=1)
            yield None
            copies.append(copy(slot, item))

    def warpgroup() -> Iterator[Callable[[], bool] | None]:
        left, at = 2 * tiles - slots, 0

        def wait() -> Callable[[], bool]:
            return lambda s=at % slots, p=at // slots % 2: full[s].passed(p)

        def read(kind: str, j: int) -> int:
            slot = at % slots
            assert held[slot] == (kind, j)
            reading[slot] += 1
            return slot

        def release(slot: int) -> None:
            nonlocal left
            reading[slot] -= 1
            if left > 0:
                empty[slot].arrive()
            left -= 1

        yield lambda: start.passed(0)
        slot = read("k", 0)
        yield None
        release(slot)
        at += 1
        yield wait()
        for j in range(1, tiles):
            k_slot = read("k", j)
            at += 1
            yield wait()
            v_slot = read("v", j - 1)
            yield None
            release(k_slot)
            at += 1
            yield wait()
            release(v_slot)
        yield wait()
        slot = read("v", tiles - 1)
        yield None
        reading[slot] -= 1

    threads = [producer(), warpgroup(), warpgroup()]
    waiting: dict[int, Callable[[], bool] | None] = dict.fromkeys(range(len(threads)))
    while waiting:
        ready = [t for t, until in waiting.items() if until is None or until()]
        assert ready or copies, "deadlock"
        pick = choose.randrange(len(ready) + len(copies))
        if pick >= len(ready):
            copies.pop(pick - len(ready))()
            continue
        try:
            waiting[ready[pick]] = next(threads[ready[pick]])
        except StopIteration:
            del waiting[ready[pick]]
    assert not copies


@pytest.mark.parametrize("tiles", [1, 2, 3, 8])
def test_the_ring_in_any_order_of_events(tiles: int) -> None:
    """The producer, its copies and both warpgroups, interleaved at random."""
    for seed in range(60):
        run_ring(tiles, SLOTS, random.Random(seed))


def test_a_block_fits() -> None:
    assert shared_bytes(1) < shared_bytes(2) <= 232448


def test_tiles_cover_every_row() -> None:
    for tokens, requests in itertools.product((1, 15, 16, 17, 968), (1, 2, 7)):
        lengths = [tokens // requests + (i < tokens % requests) for i in range(requests)]
        assert sum(-(-n * 8 // ROWS) for n in lengths) <= tiles_of(tokens, requests, 8, ROWS)
