"""``cuda.qkv_rope_kv_write.dense``: rotation and cache writes in the epilogue of the projection."""

from __future__ import annotations

import ctypes

import torch

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
