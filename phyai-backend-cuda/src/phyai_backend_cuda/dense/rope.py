"""``cuda.qkv_rope_kv_write.dense``: rotation and cache writes in the epilogue of the projection."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.dense.product import Product
from phyai_backend_cuda.runtime.launch import settled
from phyai_backend_cuda.runtime.memory import aligned, output, readable, settle

POINTERS = ("positions", "cos_sin", "slots", "q", "k", "v")
STEPS = ("q_row", "q_head", "k_page", "k_slot", "k_head", "v_page", "v_slot", "v_head")


class Rope(ctypes.Structure):
    """``Rope`` of ``csrc/dense_rope.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS), *((name, ctypes.c_longlong) for name in STEPS),
        *((name, ctypes.c_int) for name in ("page_size", "heads", "kv_heads")),
    )  # fmt: skip


def order(heads: int, kv_heads: int, head_dim: int, rotary: int) -> torch.Tensor:
    """Rows of a projection where halves rotate: eight of the first half, the eight they rotate with, the next eight.

    >>> order(1, 1, 36, 32)[:40].tolist()[:24]
    [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 8, 9, 10, 11, 12, 13, 14, 15]
    """
    turned = torch.arange(rotary).view(2, -1, 8).transpose(0, 1).reshape(-1)
    head = torch.cat([turned, torch.arange(rotary, head_dim)])
    first = torch.arange(heads + kv_heads)[:, None] * head_dim + head
    values = torch.arange((heads + kv_heads) * head_dim, (heads + 2 * kv_heads) * head_dim)
    return torch.cat([first.reshape(-1), values])


def arguments(
    positions: torch.Tensor, cos_sin: torch.Tensor, slots: torch.Tensor, q: torch.Tensor, k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> Rope:  # fmt: skip
    """What the kernel is told beside the product; heads of ``q`` and of the caches have no gaps."""
    tensors = (positions, cos_sin, slots, q, k_cache, v_cache)
    return Rope(
        *(t.data_ptr() for t in tensors), *q.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3],
        k_cache.shape[1], q.shape[1], k_cache.shape[2],
    )  # fmt: skip


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    heads, kv_heads, head_dim, rotary = (
        whole(facts, f"shape.{name}") for name in ("heads", "kv_heads", "head_dim", "rotary_dim")
    )
    neox = facts.get("attrs.style", "neox") == "neox"
    cos_sin = aligned(weights["cos_sin"])
    rows = order(heads, kv_heads, head_dim, rotary).to(cos_sin.device)

    def ordered(weight: Any) -> Any:
        return weight if weight is None or not neox else weight[rows]

    product = Product(
        ordered(weights["weight"]), ordered(weights.get("bias")), facts, defines={
            "ROPE": 1 if neox else 2, "HEAD_DIM": head_dim, "ROTARY": rotary,
            **({"WIDE": 1} if facts["dtype.positions"] == "int64" else {}),
        },
    )  # fmt: skip
    product.load(resources.rows)
    settled()

    def run(
        x: torch.Tensor, positions: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor,
        out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        q = output(x, out, len(x), heads, head_dim)
        if len(x):
            given = q, k_cache, v_cache
            places, rows, at = [readable(t) for t in given], readable(x), (positions.contiguous(), slots.contiguous())
            product.launch(rows, None, arguments(at[0], cos_sin, at[1], *places))
            for tensor, place in zip(given, places, strict=True):
                settle(tensor, place)
        return q

    def refresh(new: Mapping[str, Any]) -> None:
        product.refresh(ordered(new["weight"]), ordered(new.get("bias")))
        cos_sin.copy_(new["cos_sin"])
        settled()

    return Prepared(run, refresh=refresh)
