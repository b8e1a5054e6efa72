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

from phyai_backend_cuda.triton_rows.common import in_place, output


@triton.jit
def _rotate(x, y, cos, sin, head_dim: tl.constexpr, rotary: tl.constexpr, NEOX: tl.constexpr, HALF: tl.constexpr):
    """One head: x and y point at it, cos and sin at its position."""
    i = tl.arange(0, HALF)
    keep = i < rotary // 2
    first, second = (i, i + rotary // 2) if NEOX else (2 * i, 2 * i + 1)
    a, b = tl.load(x + first, keep, 0.0).to(tl.float32), tl.load(x + second, keep, 0.0).to(tl.float32)
    c, s = tl.load(cos + i, keep, 0.0), tl.load(sin + i, keep, 0.0)
    tl.store(y + first, a * c - b * s, keep)
    tl.store(y + second, b * c + a * s, keep)
    if rotary < head_dim:
        for start in tl.static_range(rotary, head_dim, HALF):
            rest = start + i
            tl.store(y + rest, tl.load(x + rest, rest < head_dim, 0.0), rest < head_dim)


@triton.jit
def _rope(
    q, k, positions, cos_sin, q_out, k_out, heads, kv_heads,
    head_dim: tl.constexpr, rotary: tl.constexpr, NEOX: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cos = cos_sin + tl.load(positions + row).to(tl.int64) * rotary
    if head < heads:
        at = (row * heads + head) * head_dim
        _rotate(q + at, q_out + at, cos, cos + rotary // 2, head_dim, rotary, NEOX, HALF)
    else:
        at = (row * kv_heads + head - heads) * head_dim
        _rotate(k + at, k_out + at, cos, cos + rotary // 2, head_dim, rotary, NEOX, HALF)


@triton.jit
def _kv_write(k, v, k_cache, v_cache, slots, width, BLOCK: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = d < width
    slot = tl.load(slots + row).to(tl.int64)
    tl.store(k_cache + slot * width + d, tl.load(k + row * width + d, keep), keep)
    tl.store(v_cache + slot * width + d, tl.load(v + row * width + d, keep), keep)


@triton.jit
def _split_rope_write(
    qkv, positions, cos_sin, slots, q_out, k_cache, v_cache, heads, kv_heads,
    head_dim: tl.constexpr, rotary: tl.constexpr, NEOX: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x = qkv + (row * (heads + 2 * kv_heads) + head) * head_dim
    cos = cos_sin + tl.load(positions + row).to(tl.int64) * rotary
    if head < heads:
        y = q_out + (row * heads + head) * head_dim
        _rotate(x, y, cos, cos + rotary // 2, head_dim, rotary, NEOX, HALF)
    else:
        slot = tl.load(slots + row).to(tl.int64)
        if head < heads + kv_heads:
            y = k_cache + (slot * kv_heads + head - heads) * head_dim
            _rotate(x, y, cos, cos + rotary // 2, head_dim, rotary, NEOX, HALF)
        else:
            d = tl.arange(0, BLOCK)
            y = v_cache + (slot * kv_heads + head - heads - kv_heads) * head_dim
            tl.store(y + d, tl.load(x + d, d < head_dim), d < head_dim)


def _style(facts: Facts) -> tuple[bool, int]:
    """Whether halves rotate, and the program's width."""
    return facts.get("attrs.style", "neox") == "neox", triton.next_power_of_2(int(facts["shape.rotary_dim"]) // 2)


def prepare_rope(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    cos_sin, rotary = weights["cos_sin"], int(facts["shape.rotary_dim"])
    neox, half = _style(facts)

    def run(
        q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor] | None = None, state: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        q_out, k_out = output(q, out[0] if out else None), output(k, out[1] if out else None)
        heads, kv_heads, dim = q.shape[-2], k.shape[-2], q.shape[-1]
        if positions.numel():
            _rope[(positions.numel(), heads + kv_heads)](
                q.contiguous(), k.contiguous(), positions.contiguous(), cos_sin, q_out, k_out, heads, kv_heads,
                dim, rotary, neox, half, num_warps=1,
            )  # fmt: skip
        return q_out, k_out

    return Prepared(run, refresh=in_place(weights))


def prepare_kv_write(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    def run(
        k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor,
        out: None = None, state: object = None,
    ) -> None:  # fmt: skip
        if len(slots):
            width = k.shape[1] * k.shape[2]
            block = min(1024, triton.next_power_of_2(width))
            grid = (len(slots), triton.cdiv(width, block))
            _kv_write[grid](k.contiguous(), v.contiguous(), k_cache, v_cache, slots, width, block)

    return Prepared(run)


def prepare_qkv_rope_kv_write(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    weight, bias, cos_sin = weights["weight"], weights.get("bias"), weights["cos_sin"]
    rotary = int(facts["shape.rotary_dim"])
    neox, half = _style(facts)

    def run(
        x: torch.Tensor, positions: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor,
        out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        kv_heads, dim = k_cache.shape[2:]
        heads = weight.shape[0] // dim - 2 * kv_heads
        q = output(x, out, len(x), heads, dim)
        if len(x):
            qkv = torch.nn.functional.linear(x, weight, bias)
            _split_rope_write[(len(x), heads + 2 * kv_heads)](
                qkv, positions.contiguous(), cos_sin, slots, q, k_cache, v_cache, heads, kv_heads,
                dim, rotary, neox, half, triton.next_power_of_2(dim), num_warps=1,
            )  # fmt: skip
        return q

    return Prepared(run, refresh=in_place(weights))
