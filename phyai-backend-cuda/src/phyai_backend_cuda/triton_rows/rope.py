"""``rope``, ``kv_write``, and the two in one pass behind the projection: ``qkv_rope_kv_write``."""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from phyai.facts import Facts, whole
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_cuda.runtime.memory import contiguous, output, rows_of, settle
from phyai_backend_cuda.triton_rows.common import overlapping, wait_previous


@triton.jit
def _rotate(
    x, y, y_step, here, cos, sin, row_scale, scales, head_dim: tl.constexpr, rotary: tl.constexpr, NEOX: tl.constexpr,
    HALF: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Heads of one row: x and y [heads, 1] point at those that are ``here``, cos and sin at the row's position.

    ``y_step`` lies between two elements of y. Where SCALED, x is still to be multiplied by ``row_scale`` and by its
    columns' ``scales``, pointed at as x is.
    """
    i = tl.arange(0, HALF)[None, :]
    turned = i < rotary // 2
    first, second = (i, i + rotary // 2) if NEOX else (2 * i, 2 * i + 1)
    a, b = tl.load(x + first, here & turned, 0.0).to(tl.float32), tl.load(x + second, here & turned, 0.0).to(tl.float32)
    if SCALED:
        a *= row_scale * tl.load(scales + first, here & turned, 0.0)
        b *= row_scale * tl.load(scales + second, here & turned, 0.0)
    # read for every head, from a cache: with one shape for all, every thread keeps what it read
    whole: tl.constexpr = (x.shape[0], HALF)
    c = tl.load(tl.broadcast_to(cos + i, whole), here & turned, 0.0)
    s = tl.load(tl.broadcast_to(sin + i, whole), here & turned, 0.0)
    tl.store(y + first.to(tl.int64) * y_step, a * c - b * s, here & turned)
    tl.store(y + second.to(tl.int64) * y_step, b * c + a * s, here & turned)
    if rotary < head_dim:
        for start in tl.static_range(rotary, head_dim, HALF):
            rest = start + i
            keep = here & (rest < head_dim)
            v = tl.load(x + rest, keep, 0.0)
            if SCALED:
                v = v.to(tl.float32) * (row_scale * tl.load(scales + rest, keep, 0.0))
            tl.store(y + rest.to(tl.int64) * y_step, v, keep)


@triton.jit
def _rope(
    q, k, positions, cos_sin, q_out, k_out, q_steps, k_steps, q_out_steps, k_out_steps, heads: tl.constexpr,
    kv_heads: tl.constexpr, head_dim: tl.constexpr, rotary: tl.constexpr, NEOX: tl.constexpr, HALF: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
):  # fmt: skip
    """One row: HEADS and KV_HEADS are powers of two that hold its heads."""
    row = tl.program_id(0).to(tl.int64)
    cos = cos_sin + tl.load(positions + row).to(tl.int64) * rotary
    h, g = tl.arange(0, HEADS)[:, None], tl.arange(0, KV_HEADS)[:, None]
    x, y = q + row * q_steps[0] + h * q_steps[1], q_out + row * q_out_steps[0] + h * q_out_steps[1]
    _rotate(x, y, 1, h < heads, cos, cos + rotary // 2, 1.0, x, head_dim, rotary, NEOX, HALF, False)
    x, y = k + row * k_steps[0] + g * k_steps[1], k_out + row * k_out_steps[0] + g * k_out_steps[1]
    _rotate(x, y, 1, g < kv_heads, cos, cos + rotary // 2, 1.0, x, head_dim, rotary, NEOX, HALF, False)


@triton.jit
def _slot(slots, row, steps, page_size, PAGED: tl.constexpr):
    """Where in a cache the slot of a row begins. Slots of a cache without gaps between its pages need no division."""
    slot = tl.load(slots + row).to(tl.int64)
    if PAGED:
        at = slot // page_size * steps[0] + slot % page_size * steps[1]
    else:
        at = slot * steps[1]
    return at


@triton.jit
def _kv_write(
    k, v, k_cache, v_cache, slots, k_steps, v_steps, k_cache_steps, v_cache_steps, page_size,
    head_dim: tl.constexpr, BLOCK: tl.constexpr, PAGED: tl.constexpr,
):  # fmt: skip
    row, head, d = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    keep, wide = d < head_dim, d.to(tl.int64)
    k_at = _slot(slots, row, k_cache_steps, page_size, PAGED) + head * k_cache_steps[2] + wide * k_cache_steps[3]
    v_at = _slot(slots, row, v_cache_steps, page_size, PAGED) + head * v_cache_steps[2] + wide * v_cache_steps[3]
    tl.store(k_cache + k_at, tl.load(k + row * k_steps[0] + head * k_steps[1] + d, keep), keep)
    tl.store(v_cache + v_at, tl.load(v + row * v_steps[0] + head * v_steps[1] + d, keep), keep)


@triton.jit
def _split_rope_write(
    qkv, row_scales, scales, positions, cos_sin, slots, q_out, k_cache, v_cache, q_steps, k_cache_steps, v_cache_steps,
    page_size, heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, rotary: tl.constexpr,
    NEOX: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    PAGED: tl.constexpr, SCALED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One row of what the projection gave: q's heads rotated; or k's rotated and v's copied, into the caches. Where
    SCALED, that is still to be multiplied by the row's and the column's scale.

    What does not wait for another load is loaded first: a program takes about as long as its longest chain of loads.
    """
    wait_previous(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    x = qkv + row * ((heads + 2 * kv_heads) * head_dim)
    cos = cos_sin + tl.load(positions + row).to(tl.int64) * rotary
    row_scale = tl.load(row_scales + row) if SCALED else 1.0
    if tl.program_id(1) == 0:
        h = tl.arange(0, HEADS)[:, None]
        q = q_out + row * q_steps[0] + h * q_steps[1]
        _rotate(
            x + h * head_dim, q, 1, h < heads, cos, cos + rotary // 2, row_scale,
            scales + h * head_dim if SCALED else x, head_dim, rotary, NEOX, HALF, SCALED,
        )  # fmt: skip
    else:
        g, d = tl.arange(0, KV_HEADS)[:, None], tl.arange(0, BLOCK)[None, :]
        here, wide = g < kv_heads, g.to(tl.int64)
        keep = here & (d < head_dim)
        v_columns = (heads + kv_heads) * head_dim + g * head_dim + d
        v = tl.load(x + v_columns, keep)
        if SCALED:
            v = v.to(tl.float32) * (row_scale * tl.load(scales + v_columns, keep, 0.0))
        k_slot = _slot(slots, row, k_cache_steps, page_size, PAGED)
        v_slot = _slot(slots, row, v_cache_steps, page_size, PAGED)
        at, k = x + heads * head_dim + g * head_dim, k_cache + k_slot + wide * k_cache_steps[2]
        _rotate(
            at, k, k_cache_steps[3], here, cos, cos + rotary // 2, row_scale,
            scales + (heads + g) * head_dim if SCALED else x, head_dim, rotary, NEOX, HALF, SCALED,
        )  # fmt: skip
        tl.store(v_cache + v_slot + wide * v_cache_steps[2] + d.to(tl.int64) * v_cache_steps[3], v, keep)


def _paged(*caches: torch.Tensor) -> bool:
    """Whether one of the caches has gaps between its pages."""
    return any(len(c) > 1 and c.stride(0) != c.shape[1] * c.stride(1) for c in caches)


def _style(facts: Facts) -> tuple[bool, int]:
    """Whether halves rotate, and the program's width."""
    return facts.get("attrs.style", "neox") == "neox", triton.next_power_of_2(whole(facts, "shape.rotary_dim") // 2)


def _tiles(heads: int, kv_heads: int, half: int) -> tuple[int, int, int]:
    """Powers of two that hold the heads of q and k, and warps for them: eight pairs a thread."""
    held, kept = triton.next_power_of_2(heads), triton.next_power_of_2(kv_heads)
    return held, kept, max(1, min(8, max(held, kept) * half // 256))


def prepare_rope(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    held, rotary = contiguous(weights), whole(facts, "shape.rotary_dim")
    neox, half = _style(facts)

    def run(
        q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor] | None = None, state: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        q_out, k_out = output(q, out[0] if out else None), output(k, out[1] if out else None)
        if positions.numel():
            heads, dim = q.shape[-2:]
            q, k, q_given, k_given = (rows_of(t, 2) for t in (q, k, q_out, k_out))
            block, kv_block, count = _tiles(heads, k.shape[1], half)
            _rope[(positions.numel(),)](
                q, k, positions.contiguous(), held["cos_sin"], q_given, k_given, q.stride(), k.stride(),
                q_given.stride(), k_given.stride(), heads, k.shape[1], dim, rotary, neox, half, block, kv_block,
                num_warps=count,
            )  # fmt: skip
            settle(q_out, q_given)
            settle(k_out, k_given)
        return q_out, k_out

    return Prepared(run, refresh=in_place(held))


def prepare_kv_write(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    def run(
        k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor,
        out: None = None, state: object = None,
    ) -> None:  # fmt: skip
        if len(slots):
            k, v = rows_of(k, 2), rows_of(v, 2)
            _, heads, dim = k.shape
            _kv_write[(len(slots), heads)](
                k, v, k_cache, v_cache, slots.contiguous(), k.stride(), v.stride(), k_cache.stride(), v_cache.stride(),
                k_cache.shape[1], dim, triton.next_power_of_2(dim), _paged(k_cache, v_cache), num_warps=1,
            )  # fmt: skip

    return Prepared(run)


class SplitRopeWrite:
    """What follows the projection: one launch. ``facts`` are those of ``qkv_rope_kv_write``."""

    def __init__(self, facts: Facts, cos_sin: torch.Tensor, options: Mapping[str, bool]) -> None:
        self.cos_sin, self.options, self.rotary = cos_sin, options, whole(facts, "shape.rotary_dim")
        self.neox, self.half = _style(facts)

    def __call__(
        self, qkv: torch.Tensor, q: torch.Tensor, positions: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
        slots: torch.Tensor, *, scales: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Write ``q`` and the caches of ``qkv [T, N]``, which is contiguous and still to be multiplied by ``scales``,
        fp32, of rows ``[T]`` and columns ``[N]``."""
        _, page_size, kv_heads, dim = k_cache.shape
        given, heads = rows_of(q, 2), q.shape[1]
        block, kv_block, count = _tiles(heads, kv_heads, self.half)
        _split_rope_write[(len(qkv), 2)](
            qkv, *(scales or (None, None)), positions.contiguous(), self.cos_sin, slots.contiguous(), given, k_cache,
            v_cache, given.stride(), k_cache.stride(), v_cache.stride(), page_size, heads, kv_heads, dim, self.rotary,
            self.neox, self.half, triton.next_power_of_2(dim), block, kv_block, _paged(k_cache, v_cache),
            scales is not None, bool(self.options), num_warps=count, **self.options,
        )  # fmt: skip
        settle(q, given)


def prepare_qkv_rope_kv_write(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    held = contiguous(weights)
    weight, bias = held["weight"], held.get("bias")
    split = SplitRopeWrite(facts, held["cos_sin"], overlapping(facts, params))

    def run(
        x: torch.Tensor, positions: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor,
        out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        kv_heads, dim = k_cache.shape[2:]
        q = output(x, out, len(x), weight.shape[0] // dim - 2 * kv_heads, dim)
        if len(x):
            split(torch.nn.functional.linear(x, weight, bias), q, positions, k_cache, v_cache, slots)
        return q

    return Prepared(run, refresh=in_place(held))
