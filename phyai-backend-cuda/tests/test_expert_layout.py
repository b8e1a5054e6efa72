"""The expert kernel's exchange of activations on a CPU: what its stages store, where wgmma takes it from, and that the
packed weights multiply it right."""

from __future__ import annotations

import re

import pytest
import torch
from phyai_backend_cuda.expert.launch import (
    EMBEDDED,
    EXCHANGE,
    FRAGMENTS,
    OPTIONAL_FIELDS,
    PARAM_FIELDS,
    ROWS,
    SLOTS,
    TILE,
    areas,
    blank_exchange,
    carveout,
    shared_bytes,
)
from phyai_backend_cuda.expert.tiles import pack_tiles, unpack_tiles
from phyai_backend_cuda.expert.weights import (
    BLOCKS,
    HEADS,
    INTERMEDIATE,
    RANKS,
    attention_order,
    first_octet,
    gate_up_order,
    in_fragments,
    pack_by_rank,
    pack_embed,
    pack_out,
    pack_qkv,
    qkv_order,
    rotate_chunks,
    swap_halves,
)
from phyai_backend_cuda.runtime.nvrtc import SOURCES

M = 50


def fragment(row, pair):
    """Byte of columns ``2 * pair ..`` of a row within a chunk, as in ``csrc/expert/layout.cuh``."""
    return (pair // 8) * 2048 + (row // 16) * 512 + row % 8 * 64 + pair % 8 * 8 + row // 8 % 2 * 4


def taken_by_wgmma(buffer: torch.Tensor, chunks: int) -> torch.Tensor:
    """``A [64, 64 * chunks]`` of wgmma m64nNk16 from registers (PTX ISA, figure of its A fragment): lane 4g + q holds
    rows g and g + 8, columns 2q, 2q + 1, 2q + 8, 2q + 9; of its four registers the first two hold both rows' first two
    columns, the others both rows' columns + 8."""
    units = buffer.view(chunks, 4, 4, 8, 4, 2, 2, 2)  # chunk, k-step, row tile, g, q, column + 8, row + 8, column + 1
    return units.permute(2, 6, 3, 0, 1, 5, 4, 7).reshape(64, chunks * 64)


def stored(matrix: torch.Tensor) -> torch.Tensor:
    """``[M, K]`` in the order of the kernel's columns, two at a time at ``fragment``."""
    rows, chunks = matrix.shape[0], matrix.shape[1] // 64
    buffer = torch.zeros(chunks, TILE // 2, dtype=matrix.dtype)
    row, pair = torch.arange(rows)[:, None], torch.arange(32)[None]
    at = (fragment(row, pair) // 2)[..., None] + torch.arange(2)
    for chunk in range(chunks):
        buffer[chunk, at] = matrix[:, chunk * 64 : chunk * 64 + 64].view(rows, 32, 2)
    return buffer.flatten()


def product(a: torch.Tensor, tiles: torch.Tensor, first: int) -> torch.Tensor:
    """``a`` by a block's tiles ``[chunks, rows, 64]``, in the order in which the block has them; where there are 64
    rows, warpgroup 1 has the later 32 of the odd chunks in front."""
    chunks = len(tiles)
    if tiles.shape[1] == 64:
        tiles = torch.stack([torch.cat((t[32:], t[:32])) if i % 2 else t for i, t in enumerate(tiles)])
    parts = a.view(64, chunks, 64)[:, (torch.arange(chunks) + first) % chunks]
    return torch.einsum("mck,nck->mn", parts, unpack_tiles(tiles[None]).view(-1, chunks, 64))


def values(*shape: int) -> torch.Tensor:
    return torch.randint(-8, 9, shape, dtype=torch.float64)


def by_rank(a: torch.Tensor, packed: torch.Tensor, k: int) -> torch.Tensor:
    """Stages C and E: 64 rows of the weight to a cluster, an eighth of K to a rank."""
    chunks = k // 64 // RANKS
    tiles = packed.view(RANKS, 16, chunks, 64, 64)
    columns = [
        sum(product(a[:, r * chunks * 64 :][:, : chunks * 64].contiguous(), tiles[r, c], c // 4) for r in range(RANKS))
        for c in range(16)
    ]
    return torch.cat(columns, 1)[:M]


def test_qkv_reads_x_and_leaves_queries_for_the_scores() -> None:
    torch.manual_seed(0)
    x, weight = values(M, 1024), values(2560, 1024)
    a, packed = taken_by_wgmma(stored(x), 16), pack_qkv(weight)
    outputs = []
    for block in range(BLOCKS):
        octets, first = (3 if block < 64 else 2), first_octet(block) * 16 * 512
        tiles = packed[first : first + octets * 16 * 512].view(16, octets * 8, 64)
        outputs.append(product(a, tiles, block // 4)[:M])
    want = (x @ weight.T)[:, qkv_order()]
    got = torch.cat(outputs, 1)
    assert torch.equal(got, want)

    queries = torch.zeros(32, TILE // 2, dtype=torch.float64)  # as stage A stores them: two columns at a time
    row = torch.arange(M)
    for octet in range(256):
        within = octet % 32
        for q in range(4):
            at = fragment(row, within // 2 % 4 * 8 + 2 * q + within % 2)
            for e in range(2):
                queries[octet // 32 * 4 + within // 8, at // 2 + e] = got[:, octet * 8 + 2 * q + e]
    assert torch.equal(taken_by_wgmma(queries.flatten(), 32)[:M], want[:, :2048])


def test_gate_up_leaves_for_down_what_down_multiplies() -> None:
    torch.manual_seed(1)
    x, gate_up, down = values(M, 1024), values(2 * INTERMEDIATE, 1024), values(1024, INTERMEDIATE)
    a = taken_by_wgmma(stored(x), 16)
    tiles = pack_tiles(in_fragments(gate_up)[gate_up_order()], 64)
    tiles = swap_halves(rotate_chunks(tiles, torch.arange(BLOCKS) // 4))
    act = torch.zeros(64, TILE // 2, dtype=torch.float64)
    thread = torch.arange(128)  # of a warpgroup: 16 bytes each
    first_row, q = thread // 32 * 16 + thread // 4 % 8, thread % 4
    for block in range(BLOCKS):
        y = product(a, tiles[block], block // 4).view(64, 8, 4, 2).sum(-1)  # row, octet, q; any function of gate and up
        for group in range(2):
            unit = [y[first_row + 8 * (i // 2 % 2), group * 4 + i // 4 * 2 + i % 2, q] for i in range(8)]
            k_step = block % 2 * 2 + group
            act[block // 2].view(4, 128, 8)[k_step] = torch.stack(unit, -1)
    g, u = (x @ gate_up.T).chunk(2, -1)
    assert torch.equal(by_rank(taken_by_wgmma(act.flatten(), 64), pack_by_rank(down), INTERMEDIATE), (g + u) @ down.T)


def test_combined_attention_is_what_o_multiplies() -> None:
    torch.manual_seed(2)
    attention, weight = values(M, HEADS * 256), values(1024, HEADS * 256)
    out = torch.zeros(32, TILE // 2, dtype=torch.float64)
    row = torch.arange(M)[:, None]
    for head in range(HEADS):
        for unit in range(32):  # a thread's q of four column octets of the accumulator
            octets, q = unit // 8 * 8 + unit // 4 % 2 * 4 + torch.arange(4), unit % 4
            columns = (octets[:, None] * 8 + 2 * q + torch.arange(2)).flatten()
            mine = attention[:, head * 256 + columns]
            for half in range(2):
                k_step = unit // 4 * 2 + half
                at = fragment(row, k_step % 4 * 8 + unit % 4 * 2) // 2 + torch.arange(2)
                out[head * 4 + k_step // 4, at] = mine[:, half * 4 : half * 4 + 2]
                out[head * 4 + k_step // 4, at + 4] = mine[:, half * 4 + 2 : half * 4 + 4]
    packed = pack_by_rank(weight[:, attention_order()])
    assert torch.equal(by_rank(taken_by_wgmma(out.flatten(), 32), packed, 2048), attention @ weight.T)


def test_the_embedding_leaves_each_block_the_columns_of_x_that_it_owns() -> None:
    torch.manual_seed(3)
    z, weight = values(M, 1024), values(1024, 1024)
    a, packed = taken_by_wgmma(stored(z), 16), pack_embed(weight).view(BLOCKS, 16, 8, 64)
    x = torch.zeros(M, 1024, dtype=torch.float64)
    for block in range(BLOCKS):
        first = block % 16 * 64 + block // 16 * 8
        x[:, first : first + 8] = product(a, packed[block], block // 4)[:M]
    assert torch.equal(x, z @ weight.T)


def keys_of_tiles(prefix: int, rows: int) -> list[tuple[range, range]]:
    """Of every tile its keys of the prefix, and behind them its new ones, as ``Keys`` of ``csrc/expert/layout.cuh``."""
    tiles = (prefix + rows + 63) // 64
    share, rest = rows // tiles, rows % tiles
    found = []
    for t in range(tiles):
        begin, fresh = t * 64 - (share * t + min(t, rest)), share + (t < rest)
        old = min(max(prefix - begin, 0), 64 - fresh)
        found.append((range(begin, begin + old), range(t, t + fresh * tiles, tiles)))
    return found


@pytest.mark.parametrize("rows", [1, 10, 50, 51, ROWS])
def test_every_key_lies_in_one_tile_and_new_ones_are_spread_evenly(rows: int) -> None:
    for prefix in range(1100):
        tiles = keys_of_tiles(prefix, rows)
        assert [key for old, _ in tiles for key in old] == list(range(prefix))
        assert sorted(key for _, new in tiles for key in new) == list(range(rows))
        assert all(1 <= len(old) + len(new) <= 64 for old, new in tiles)
        assert max(len(new) for _, new in tiles) - min(len(new) for _, new in tiles) <= 1


@pytest.mark.parametrize("prefix", [20, 300, 968, 1030])
def test_new_keys_and_values_are_put_where_wgmma_takes_them_from(prefix: int) -> None:
    """As ``Patch`` of ``csrc/expert/new_keys.cuh``: 128 threads, 16 bytes each at a time, behind old keys."""
    tiles = keys_of_tiles(prefix, M)
    fresh = torch.arange(2 * ROWS * 256).view(2, ROWS, 256)
    for t, (old, new) in enumerate(tiles):
        items = torch.full((2, 4, 64, 64), -1)  # keys and values, a chunk each
        for values in range(2):
            memory = items[values].view(-1)
            for thread in range(128):
                chunk = thread >> 3 & 3
                place = (chunk & 1) * 2 + (chunk >> 1) if values else chunk
                for i in range((len(new) * 32 - thread + 127) // 128):
                    row = len(old) + (thread >> 5) + i * 4
                    key = t + (thread >> 5) * len(tiles) + i * len(tiles) * 4
                    to = place * 4096 + row * 64 + ((thread & 7) ^ (row & 7)) * 8
                    memory[to : to + 8] = fresh[values, key, thread % 32 * 8 : thread % 32 * 8 + 8]
        for values, order in enumerate(([0, 1, 2, 3], [0, 2, 1, 3])):
            rows = unpack_tiles(items[values][None, order])[len(old) :]
            assert torch.equal(rows[: len(new)], fresh[values, new])
            assert (rows[len(new) :] == -1).all()


def test_every_block_has_all_columns_of_the_actions() -> None:
    torch.manual_seed(4)
    x, weight = values(M, 1024), values(32, 1024)
    packed = pack_out(weight).view(16, 32, 64)
    assert torch.equal(product(taken_by_wgmma(stored(x), 16), packed, 0)[:M], x @ weight.T)


@pytest.mark.parametrize("rows", [1, 10, 50, ROWS])
@pytest.mark.parametrize("sizes", [EXCHANGE, EXCHANGE | EMBEDDED], ids=["plain", "embedded"])
def test_a_blank_exchange_waits_for_the_rows_that_are_written(sizes: dict[str, int], rows: int) -> None:
    views = areas(blank_exchange(sizes, rows), sizes)
    for name in sizes.keys() & FRAGMENTS:
        for chunk in views[name].view(torch.int16).view(-1, TILE // 2):
            assert (taken_by_wgmma(chunk, 1) == -1).all(1).tolist() == [row < rows for row in range(64)]
    assert not views["ssq"].any()
    assert all((views[name] == 255).all() for name in ("fresh", "ml"))


def test_parameters_are_in_the_order_of_the_source() -> None:
    source = re.sub(r"//.*", "", (SOURCES / "expert" / "layout.cuh").read_text(encoding="utf-8"))
    fields = source.split("struct Params {")[1].split("};")[0]
    assert tuple(re.findall(r"\*\s*(\w+)", fields)) == PARAM_FIELDS + OPTIONAL_FIELDS
    assert fields.index("*trace") < fields.index("int layers") < fields.index("*fixed")


@pytest.mark.parametrize(("slots", "kib"), [(6, 132), (SLOTS, 164), (10, 196), (12, 228)])
def test_a_block_s_shared_memory_leaves_the_rest_to_l1(slots: int, kib: int) -> None:
    assert (kib - 32) * 1024 < shared_bytes(slots) + 1024 <= kib * 1024
    asked = carveout(slots) * 228 / 100  # the driver takes the next size that there is
    assert kib - 32 < asked <= kib
