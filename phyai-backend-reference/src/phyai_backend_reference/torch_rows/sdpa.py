"""torch's SDPA backends as functions on ``[B, heads, S, head_dim]``, each called for itself.

``torch.nn.attention.sdpa_kernel`` would choose among them through flags of the whole process, which other threads
share; these are the operators that it chooses from.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from phyai.facts import Facts

from phyai_backend_reference.numerics import attribute
from phyai_backend_reference.reference.masks import both, padded

aten = torch.ops.aten

#: ``attention(q, k, v, bias, causal, scale)``: bias is added to the scores, causal is aligned to the first key.
Backend = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, "torch.Tensor | None", bool, "float | None"], torch.Tensor
]


def flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float | None
) -> torch.Tensor:
    if q.is_cuda:
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)[0]
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=bias, scale=scale)[0]


def cudnn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float | None
) -> torch.Tensor:
    if k.shape[-2] == 1 and bias is None:  # cuDNN refuses a single key, to which all attention goes
        return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1).expand_as(q)
    return aten._scaled_dot_product_cudnn_attention(q, k, v, bias, False, 0.0, causal, False, scale=scale)[0]


def efficient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float | None
) -> torch.Tensor:
    if bias is not None:
        bias = bias.expand(*q.shape[:-1], k.shape[-2])
    return aten._scaled_dot_product_efficient_attention(q, k, v, bias, False, 0.0, causal, scale=scale)[0]


def math(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float | None
) -> torch.Tensor:
    return aten._scaled_dot_product_attention_math(q, k, v, bias, 0.0, causal, scale=scale, enable_gqa=True)[0]


def bias_of(keep: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where ``keep``, minus infinity elsewhere; rows aligned as the memory-efficient kernel wants them."""
    keys = keep.shape[-1]
    rows = torch.zeros(*keep.shape[:-1], -(-keys // 16) * 16, dtype=dtype, device=keep.device)[..., :keys]
    return rows.masked_fill_(~keep, -torch.inf)


def attention(backend: Backend, facts: Facts) -> Callable[..., torch.Tensor]:
    """``attend(q, k, v, mask)`` on ``[B, S, heads, head_dim]``, with the call's attributes."""
    causal, window = attribute(facts, "causal", False), attribute(facts, "window", None)
    scale = attribute(facts, "scale", None)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if not q.numel() or not k.numel():
            return torch.zeros_like(q)
        queries, keys = q.shape[1], k.shape[1]
        aligned = causal and window is None and mask is None and queries == keys
        keep = both(mask, None if aligned else padded(queries, keys, causal, window, q.device))
        if keep is not None and keep.dim() == 3:
            keep = keep[:, None]  # the same for every head
        q, k, v = (_rows(t).transpose(1, 2) for t in (q, k, v))
        bias = None if keep is None else bias_of(keep.expand(q.shape[0], 1, queries, keys), q.dtype)
        return backend(q, k, v, bias, aligned, scale).transpose(1, 2)

    return attend


def _rows(t: torch.Tensor) -> torch.Tensor:
    """``t`` as the fused kernels read it: a head's elements next to each other and, on a GPU, every head of every
    token at a multiple of 16 bytes. A tensor that lies otherwise is copied."""
    if t.stride(-1) != 1:
        return t.contiguous()
    if t.is_cuda and (t.data_ptr() % 16 or any(stride * t.element_size() % 16 for stride in t.stride()[:-1])):
        return t.clone(memory_format=torch.contiguous_format)
    return t


def varlen(facts: Facts) -> Callable[..., torch.Tensor]:
    """``attend(q, k, v, cu_q, cu_k, max_k, used_k)`` on ``[tokens, heads, head_dim]``: variable-length flash attention.

    With ``used_k`` sequence r has the keys from ``cu_k[r]``, so many. The kernel reads boundaries and lengths as they
    lie in memory, so strided ones are copied. Two things it makes of the longest lengths that it is told, which may be
    any bounds. With one query it takes it that every sequence has one: it is told of two. A window that has no end on
    the right ends for it after as many keys as the longest sequence has, counted from a query's own, which with more
    queries than keys hides keys: it is told of as many keys as there are queries and keys.
    """
    causal, window = attribute(facts, "causal", False), attribute(facts, "window", None)
    scale = attribute(facts, "scale", None)
    left, right = -1 if window is None else window - 1, 0 if causal else -1

    def attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_q: torch.Tensor,
        cu_k: torch.Tensor,
        max_k: int,
        used_k: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not q.numel() or not k.numel():
            return torch.zeros_like(q)
        return aten._flash_attention_forward(
            _rows(q), _rows(k), _rows(v), cu_q.contiguous(), cu_k.contiguous(), max(2, len(q)),
            max_k if window is None else max_k + len(q), 0.0, causal, False,
            scale=scale, window_size_left=left, window_size_right=right,
            seqused_k=None if used_k is None else used_k.contiguous(),
        )[0]  # fmt: skip

    return attend
