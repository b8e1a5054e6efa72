"""The kernels for Hopper as their sources define them, computed on the CPU from the very arguments of a launch."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from phyai_backend_cuda.attention import prefill
from phyai_backend_cuda.attention.paged import tiles_of
from phyai_backend_cuda.skinny import order
from phyai_backend_cuda.skinny.launch import ACTIVATIONS

F = torch.nn.functional


def memory(pointer: int | None, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """What lies at an address."""
    assert pointer is not None
    size = dtype.itemsize
    extent = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    buffer = (ctypes.c_char * (extent * size)).from_address(pointer)
    return torch.frombuffer(buffer, dtype=dtype).as_strided(tuple(shape), tuple(strides))


def flat(pointer: int | None, dtype: torch.dtype, count: int) -> torch.Tensor:
    return memory(pointer, dtype, (count,), (1,))


def pairs(values: torch.Tensor, n: int, groups: int) -> torch.Tensor:
    """``[n, groups]`` of values that lie two to a thread."""
    whole = -(-n // 64)
    return values.view(whole, groups, 4, 8, 2).permute(0, 2, 4, 3, 1).reshape(-1, groups)[:n]


def weight_of(p: Any, d: Mapping[str, int], dtype: torch.dtype) -> torch.Tensor:
    n, k, padded = p.n, p.k, -(-p.n // 64) * 64
    if d["BITS"] == 16:
        return memory(p.w, dtype, (n, k), (k, 1)).double()
    packed = flat(p.w, torch.uint8, padded * k * d["BITS"] // 8)
    if d["BITS"] == 8:
        values = order.unpack_fp8(packed, n, k).view(torch.float8_e4m3fn).double()
    else:
        values = order.unpack_int4(packed, n, k).double()
    groups = k // d["GROUP"] if d["GROUP"] else 1
    if d["BITS"] == 4:
        zero = torch.full((n, groups), 8.0, dtype=torch.float64)
        if d["CENTRED"]:
            base = 1024 if dtype == torch.float16 else 128
            zero = pairs(flat(p.group_zero, dtype, padded * groups), n, groups).double() - base
        values = values - zero.repeat_interleave(k // groups, 1)
    if d["GROUP"]:
        scale = pairs(flat(p.group_scale, dtype, padded * groups), n, groups).double()
        return values * scale.repeat_interleave(d["GROUP"], 1)
    return values * flat(p.row_scale, torch.float32, n).double()[:, None]


def skinny_cu(p: Any, d: Mapping[str, int], grid: Sequence[int], block: int) -> None:
    assert (p.k, block) == (64 * d["CHUNKS"] * d["SPLITS"], 128)
    assert tuple(grid) == (d["SPLITS"], -(-p.n // 64))
    assert [p.y % 4, p.y_row % 2] == [0] * 2
    product(p, d)


def skinny_pair_cu(p: Any, d: Mapping[str, int], grid: Sequence[int], block: int) -> None:
    assert (p.k, block) == (64 * d["CHUNKS"] * 2, 128)
    assert tuple(grid) == (2, -(-p.n // 128))
    assert [p.y % 16, p.y_row % 8] == [0] * 2  # whole lines are stored
    product(p, {"BITS": 16, **d})


def product(p: Any, d: Mapping[str, int]) -> None:
    dtype = torch.float16 if "HALF" in d else torch.bfloat16
    activation = ["", *ACTIVATIONS][d["ACTIVATION"]]
    columns = p.n // 2 if activation else p.n
    assert 1 <= p.m <= 8 * d["M8"]
    assert [p.x % 16, p.x_row % 8, p.w % 16] == [0] * 3
    x = memory(p.x, dtype, (p.m, p.k), (p.x_row, 1)).double()
    y = x @ weight_of(p, d, dtype).T
    if activation:
        act = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda v: F.gelu(v, approximate="tanh")}[activation]
        y = act(y[:, :columns]) * y[:, columns:]
    elif p.bias:
        y = y + flat(p.bias, dtype, p.n).double()
    if d.get("EPILOGUE") == 2:
        heads(p, d, dtype, y)
        return
    if d.get("EPILOGUE") == 1:
        assert [at % 4 for at in (p.residual, p.gate)] + [row % 2 for row in (p.residual_row, p.gate_row)] == [0] * 4
        gate = memory(p.gate, dtype, (p.m // p.gate_rows, p.n), (p.gate_row, 1)).repeat_interleave(p.gate_rows, 0)
        y = memory(p.residual, dtype, (p.m, p.n), (p.residual_row, 1)).double() + gate.double() * y
    memory(p.y, dtype, (p.m, columns), (p.y_row, 1)).copy_(y)


def heads(p: Any, d: Mapping[str, int], dtype: torch.dtype, y: torch.Tensor) -> None:
    """Heads of the product: rotated, q to the output, k and v to their slots."""
    dim, rotary, counts = d["HEAD_DIM"], d["ROTARY"], [d["HEADS"], d["KV_HEADS"], d["KV_HEADS"]]
    assert p.n == sum(counts) * dim
    assert dim % 32 == 0
    assert rotary % (32 if d["NEOX"] else 2) == 0
    positions = flat(p.positions, torch.int32, p.m * p.position_words)[:: p.position_words].tolist()
    slots = flat(p.slots, torch.int32, p.m * 2)[::2].tolist()
    q, k, v = y.view(p.m, -1, dim).split(counts, 1)
    table = torch.stack([flat(p.cos_sin + 4 * at * rotary, torch.float32, rotary) for at in positions]).double()
    cos, sin = (t[:, None] for t in table.split(rotary // 2, 1))
    turned = []
    for x in (q, k):
        head, rest = x[..., :rotary], x[..., rotary:]
        a, b = head.chunk(2, -1) if d["NEOX"] else (head[..., 0::2], head[..., 1::2])
        a, b = a * cos - b * sin, b * cos + a * sin
        head = torch.cat((a, b), -1) if d["NEOX"] else torch.stack((a, b), -1).flatten(-2)
        turned.append(torch.cat((head, rest), -1))
    memory(p.y, dtype, (p.m, d["HEADS"], dim), (p.y_row, p.y_head, 1)).copy_(turned[0])
    for new, at, page, row, head in (
        (turned[1], p.k_cache, p.k_page, p.k_slot, p.k_head), (v, p.v_cache, p.v_page, p.v_slot, p.v_head)
    ):  # fmt: skip
        assert [at % 4, page % 2 * bool(p.page_size), row % 2, head % 2] == [0] * 4
        for values, slot in zip(new, slots, strict=True):
            where = slot * row if not p.page_size else slot // p.page_size * page + slot % p.page_size * row
            memory(at + 2 * where, dtype, (d["KV_HEADS"], dim), (head, 1)).copy_(values)


def norm_cu(p: Any, d: Mapping[str, int], grid: Sequence[int], block: int) -> None:
    dtype, dim, m = torch.float16 if "HALF" in d else torch.bfloat16, d["DIM"], grid[0]
    assert block == -(-dim // 256) * 32
    assert [p.x % 16, p.y % 16, p.x_row % 8, p.y_row % 8] == [0] * 4
    x = memory(p.x, dtype, (m, dim), (p.x_row, 1)).double()
    if d["ADD"]:
        residual = memory(p.residual, dtype, (m, dim), (p.residual_row, 1))
        x = x + residual.double()
        residual.copy_(x)
    unit = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + p.eps)
    if d["ADAPTIVE"]:
        conditions = memory(p.modulation, dtype, (m // p.rows, 3, dim), (p.modulation_row, dim, 1))
        memory(p.gate, dtype, (m // p.rows, dim), (p.gate_row, 1)).copy_(conditions[:, 2])
        scale, shift = (t.repeat_interleave(p.rows, 0) for t in conditions.double().unbind(1)[:2])
        unit = unit * (1 + scale) + shift
    elif p.weight:
        unit = unit * (p.offset + flat(p.weight, dtype, dim).double())
    memory(p.y, dtype, (m, dim), (p.y_row, 1)).copy_(unit)


def attention_cu(p: Any, d: Mapping[str, int], grid: Sequence[int], block: int) -> None:
    dtype, dim, group = torch.float16 if "HALF" in d else torch.bfloat16, d["HD"], d["GROUP"]
    kv_heads = p.heads // group
    assert (*grid, block) == (d["SPLITS"], tiles_of(p.tokens, p.requests, group, 64), kv_heads, 128)
    q, o = (memory(at, dtype, (p.tokens, p.heads, dim), (p.heads * dim, dim, 1)) for at in (p.q, p.o))
    ends, indptr = (flat(at, torch.int32, p.requests + 1).tolist() for at in (p.cu_seqlens, p.indptr))
    last = flat(p.last, torch.int32, p.requests).tolist()
    o.zero_()
    used = 0
    for b in range(p.requests):
        rows = slice(ends[b], ends[b + 1])
        used += -(-(rows.stop - rows.start) * group // 64)
        first, count = (b, 1) if d["SLABS"] else (indptr[b], indptr[b + 1] - indptr[b])
        length = (count - 1) * p.page_size + last[b] if count else 0
        if not length or rows.start == rows.stop:
            continue
        held = []
        for at, step, key, head in ((p.k, p.k_page, p.k_key, p.k_head), (p.v, p.v_page, p.v_key, p.v_head)):
            pages = flat(p.indices, torch.int32, first + count)[first:].tolist()
            shape, strides = (p.page_size, kv_heads, dim), (key, head, 1)
            cached = [memory(at + 2 * page * step, dtype, shape, strides) for page in pages]
            held.append(torch.cat(cached)[:length].double().repeat_interleave(group, 1))
        s = torch.einsum("qhd,khd->hqk", q[rows].double(), held[0]) * p.scale
        s = p.cap * torch.tanh(s / p.cap) if p.cap else s
        at = torch.arange(rows.stop - rows.start)[:, None] + length - (rows.stop - rows.start)
        keys = torch.arange(length)[None]
        keep = (keys <= at if p.causal else keys >= 0) & (at - keys < (p.window or math.inf))
        weights = s.masked_fill(~keep, -math.inf).softmax(-1).nan_to_num(0)
        o[rows] = torch.einsum("hqk,khd->qhd", weights, held[1]).to(dtype)
    assert used <= grid[1]


class Described(ctypes.Structure):
    """What stands for a ``CUtensorMap``: where a tensor is, its sizes and its strides."""

    _fields_ = (("at", ctypes.c_void_p), ("sizes", ctypes.c_longlong * 4), ("steps", ctypes.c_longlong * 4),
                ("rest", ctypes.c_ubyte * 56))  # fmt: skip


def box_map(t: torch.Tensor, box: Sequence[int], row_bytes: int = 128) -> Described:
    assert [t.data_ptr() % 16, *(step % 8 for step in t.stride()[:-1])] == [0] * 4
    assert all(t.stride()), "the copy engine has not been told of a stride of zero"
    assert tuple(box) == (1, 1, 64)
    return Described(t.data_ptr(), tuple(t.shape), tuple(t.stride()), (row_bytes,))


def attention_short_cu(arguments: Sequence[Any], d: Mapping[str, int], grid: Sequence[int], block: int) -> None:
    maps, p = arguments
    dtype, dim, rows = torch.float16 if "HALF" in d else torch.bfloat16, d["HD"], 64 * d["GROUPS"]
    parts = -(-dim // 64)
    held = (Described * (4 * parts)).from_buffer(maps)
    q, k, v, o = (memory(m.at, dtype, m.sizes, m.steps) for m in held[::parts])
    for m in held[parts - 1 :: parts]:
        assert 64 * (parts - 1) + m.rest[0] // 2 >= dim
    heads, batch = grid[1], grid[0] // p.tiles
    assert block == 2 * rows
    assert (grid[0], p.tiles) == (batch * p.tiles, -(-p.queries // rows))
    assert 64 * (d["CHUNKS"] - 1) < p.keys <= 64 * d["CHUNKS"]
    assert q.shape == o.shape == (batch, heads, p.queries, dim)
    assert k.shape == v.shape == (batch, heads // p.group, p.keys, dim)
    k, v = (t.double().repeat_interleave(p.group, 1) for t in (k, v))
    weights = torch.softmax(q.double() @ k.mT * (p.factor * math.log(2)), -1)
    o.copy_(weights @ v)


@attrs.frozen
class Map:
    """Instead of a tensor map: what it would describe."""

    tensor: torch.Tensor
    box: tuple[int, ...]

    def __attrs_post_init__(self) -> None:
        assert [self.tensor.data_ptr() % 16, self.tensor.stride(-1)] == [0, 1]
        assert all(step % 8 == 0 and step >= self.tensor.shape[-1] for step in self.tensor.stride()[:-1])
        assert len(self.box) == self.tensor.dim() - 1


def attention_prefill_cu(arguments: Any, d: Mapping[str, int], grid: Sequence[int], block: int) -> None:
    q, k, v, p = arguments
    dtype, group = torch.float16 if "HALF" in d else torch.bfloat16, d["GROUP"]
    kv_heads = p.heads // group
    assert (q.tensor.shape, q.box) == ((p.tokens, p.heads, 256), (128 // group, group))
    assert {q.tensor.dtype, k.tensor.dtype, v.tensor.dtype} == {dtype}
    assert k.box == v.box == (1, prefill.KEYS, 1)
    tiles = tiles_of(p.tokens, p.requests, group, prefill.ROWS)
    assert (tuple(grid), block) == ((d["SPLITS"] * tiles, kv_heads), 384)
    o = memory(p.o, dtype, (p.tokens, p.heads, 256), (p.heads * 256, 256, 1))
    ends = flat(p.cu_seqlens, torch.int32, p.requests + 1).tolist()
    pages, last = (flat(at, torch.int32, p.requests).tolist() for at in (p.indices, p.last))
    o.zero_()
    for b in range(p.requests):
        rows, n = slice(ends[b], ends[b + 1]), last[b]
        if not n:
            continue
        keys, values = (t.tensor[pages[b], :n].double().repeat_interleave(group, 1) for t in (k, v))
        s = torch.einsum("qhd,khd->hqk", q.tensor[rows].double(), keys) * p.factor * math.log(2)
        o[rows] = torch.einsum("hqk,khd->qhd", s.softmax(-1), values).to(dtype)


SOURCES: Mapping[str, Callable[..., None]] = {
    "skinny.cu": skinny_cu, "skinny_pair.cu": skinny_pair_cu, "norm.cu": norm_cu, "attention.cu": attention_cu,
    "attention_prefill.cu": attention_prefill_cu, "attention_short.cu": attention_short_cu,
}  # fmt: skip


class Simulated:
    """A kernel that computes on the CPU what its arguments say."""

    def __init__(self, name: str, defines: Mapping[str, int], cluster: int) -> None:
        self.name, self.defines, self.cluster = name, defines, cluster

    def clusters(self, block: int) -> int:
        return 7

    def launch(
        self, grid: Sequence[int], block: int, arguments: Sequence[Any], stream: int, *, overlap: bool = False
    ) -> None:
        assert overlap
        SOURCES[self.name](arguments if len(arguments) > 1 else arguments[0], self.defines, grid, block)
