"""What ``csrc/skinny.cu`` does with a product beside an activation: arguments of a residual with its gate, and of heads
that are rotated and written to a cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import torch

#: Elements of a head, of its rotated part where halves rotate, and rows of W, in which two warps' outputs meet.
PAIR = 32


@attrs.frozen(kw_only=True)
class Heads:
    """The outputs of a product: ``heads`` of q, ``kv_heads`` of k, as many of v. The first ``rotary_dim`` elements of
    those of q and k are rotated, halves (``neox``) or neighbours."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    neox: bool = True

    @property
    def outputs(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def objection(self) -> str | None:
        """Why they cannot be outputs of the kernel; None where they can."""
        if self.head_dim % PAIR:
            return f"head_dim={self.head_dim} is no multiple of {PAIR}"
        if self.rotary_dim % (PAIR if self.neox else 2) or self.rotary_dim > self.head_dim:
            return f"rotary_dim={self.rotary_dim} is no multiple of {PAIR if self.neox else 2} within {self.head_dim}"
        return None

    def defines(self) -> dict[str, int]:
        return {
            "HEADS": self.heads, "KV_HEADS": self.kv_heads, "HEAD_DIM": self.head_dim, "ROTARY": self.rotary_dim,
            "NEOX": int(self.neox),
        }  # fmt: skip


def residual_arguments(residual: torch.Tensor, gate: torch.Tensor) -> dict[str, int]:
    """Fields of ``Params`` for ``residual [M, N]`` and ``gate [R, N]``, rows of which the kernel can read in pairs."""
    return {
        "residual": residual.data_ptr(), "gate": gate.data_ptr(), "residual_row": residual.stride(0),
        "gate_row": gate.stride(0), "gate_rows": len(residual) // len(gate),
    }  # fmt: skip


def head_arguments(
    q: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, cos_sin: torch.Tensor, k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> dict[str, int]:  # fmt: skip
    """Fields of ``Params`` for ``q [M, heads, head_dim]`` and caches ``[pages, page_size, kv_heads, head_dim]``, of all
    of which pairs can be written; positions (int32 or int64) and slots (int64) lie without gaps."""
    apart = any(len(c) > 1 and c.stride(0) != c.shape[1] * c.stride(1) for c in (k_cache, v_cache))
    strides = {
        f"{name}_{what}": cache.stride(dim)
        for name, cache in (("k", k_cache), ("v", v_cache))
        for dim, what in enumerate(("page", "slot", "head"))
    }
    return {
        "positions": positions.data_ptr(), "slots": slots.data_ptr(), "cos_sin": cos_sin.data_ptr(),
        "k_cache": k_cache.data_ptr(), "v_cache": v_cache.data_ptr(), "y_row": q.stride(0), "y_head": q.stride(1),
        **strides, "position_words": positions.element_size() // 4, "page_size": k_cache.shape[1] if apart else 0,
    }  # fmt: skip
