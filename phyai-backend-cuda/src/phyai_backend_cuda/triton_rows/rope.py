"""``rope``, ``kv_write``, and the two in one pass behind the projection: ``qkv_rope_kv_write``."""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.triton_rows.common import contiguous, in_place, output, rows_of, settle


@triton.jit
def _rotate(
    x, y, y_step, cos, sin, head_dim: tl.constexpr, rotary: tl.constexpr, NEOX: tl.constexpr, HALF: tl.constexpr
):
    """One head: x and y point at it, cos and sin at its position. ``y_step`` lies between two elements of y."""
    i = tl.arange(0, HALF)
    keep = i < rotary // 2
    first, second = (i, i + rotary // 2) if NEOX else (2 * i, 2 * i + 1)
    a, b = tl.load(x + first, keep, 0.0).to(tl.float32), tl.load(x + second, keep, 0.0).to(tl.float32)
    c, s = tl.load(cos + i, keep, 0.0), tl.load(sin + i, keep, 0.0)
    tl.store(y + first.to(tl.int64) * y_step, a * c - b * s, keep)
    tl.store(y + second.to(tl.int64) * y_step, b * c + a * s, keep)
    if rotary < head_dim:
        for start in tl.static_range(rotary, head_dim, HALF):
            rest = start + i
            tl.store(y + rest.to(tl.int64) * y_step, tl.load(x + rest, rest < head_dim, 0.0), rest < head_dim)


@triton.jit
def _rope(
    q, k, positions, cos_sin, q_out, k_out, q_steps, k_steps, q_out_steps, k_out_steps, heads,
    head_dim: tl.constexpr, rotary: tl.constexpr, NEOX: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cos = cos_sin + tl.load(positions + row).to(tl.int64) * rotary
    if head < heads:
        x, y = q + row * q_steps[0] + head * q_steps[1], q_out + row * q_out_steps[0] + head * q_out_steps[1]
        _rotate(x, y, 1, cos, cos + rotary // 2, head_dim, rotary, NEOX, HALF)
    else:
        head -= heads
        x, y = k + row * k_steps[0] + head * k_steps[1], k_out + row * k_out_steps[0] + head * k_out_steps[1]
        _rotate(x, y, 1, cos, cos + rotary // 2, head_dim, rotary, NEOX, HALF)


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
    qkv, positions, cos_sin, slots, q_out, k_cache, v_cache, q_steps, k_cache_steps, v_cache_steps, page_size,
    heads, kv_heads, head_dim: tl.constexpr, rotary: tl.constexpr, NEOX: tl.constexpr, HALF: tl.constexpr,
    BLOCK: tl.constexpr, PAGED: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x = qkv + (row * (heads + 2 * kv_heads) + head) * head_dim
    cos = cos_sin + tl.load(positions + row).to(tl.int64) * rotary
    if head < heads:
        y = q_out + row * q_steps[0] + head * q_steps[1]
        _rotate(x, y, 1, cos, cos + rotary // 2, head_dim, rotary, NEOX, HALF)
    elif head < heads + kv_heads:
        at = _slot(slots, row, k_cache_steps, page_size, PAGED) + (head - heads).to(tl.int64) * k_cache_steps[2]
        _rotate(x, k_cache + at, k_cache_steps[3], cos, cos + rotary // 2, head_dim, rotary, NEOX, HALF)
    else:
        head -= heads + kv_heads
        d = tl.arange(0, BLOCK)
        at = _slot(slots, row, v_cache_steps, page_size, PAGED) + head.to(tl.int64) * v_cache_steps[2]
        y = v_cache + at + d.to(tl.int64) * v_cache_steps[3]
        tl.store(y, tl.load(x + d, d < head_dim), d < head_dim)


def _paged(*caches: torch.Tensor) -> bool:
    """Whether one of the caches has gaps between its pages."""
    return any(len(c) > 1 and c.stride(0) != c.shape[1] * c.stride(1) for c in caches)


def _style(facts: Facts) -> tuple[bool, int]:
    """Whether halves rotate, and the program's width."""
    return facts.get("attrs.style", "neox") == "neox", triton.next_power_of_2(int(facts["shape.rotary_dim"]) // 2)


def prepare_rope(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    held, rotary = contiguous(weights), int(facts["shape.rotary_dim"])
    neox, half = _style(facts)

    def run(
        q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor] | None = None, state: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        q_out, k_out = output(q, out[0] if out else None), output(k, out[1] if out else None)
        if positions.numel():
            heads, dim = q.shape[-2:]
            q, k, q_given, k_given = (rows_of(t, 2) for t in (q, k, q_out, k_out))
            _rope[(positions.numel(), heads + k.shape[1])](
                q, k, positions.contiguous(), held["cos_sin"], q_given, k_given, q.stride(), k.stride(),
                q_given.stride(), k_given.stride(), heads, dim, rotary, neox, half, num_warps=1,
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


def prepare_qkv_rope_kv_write(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    held, rotary = contiguous(weights), int(facts["shape.rotary_dim"])
    weight, bias, cos_sin = held["weight"], held.get("bias"), held["cos_sin"]
    neox, half = _style(facts)

    def run(
        x: torch.Tensor, positions: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor,
        out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        _, page_size, kv_heads, dim = k_cache.shape
        heads = weight.shape[0] // dim - 2 * kv_heads
        q = output(x, out, len(x), heads, dim)
        if len(x):
            qkv, given = torch.nn.functional.linear(x, weight, bias), rows_of(q, 2)
            _split_rope_write[(len(x), heads + 2 * kv_heads)](
                qkv, positions.contiguous(), cos_sin, slots.contiguous(), given, k_cache, v_cache,
                given.stride(), k_cache.stride(), v_cache.stride(), page_size, heads, kv_heads,
                dim, rotary, neox, half, triton.next_power_of_2(dim), _paged(k_cache, v_cache), num_warps=1,
            )  # fmt: skip
            settle(q, given)
        return q

    return Prepared(run, refresh=in_place(held))
