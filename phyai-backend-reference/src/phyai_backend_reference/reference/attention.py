"""``reference.attention``: padded or ragged, every attribute."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_reference.numerics import attribute, dtype_of, give, wide
from phyai_backend_reference.reference.masks import both, padded, segment, segmented


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keep: torch.Tensor | None,
    scale: float | None,
    soft_cap: float | None,
) -> torch.Tensor:
    """Attention of ``[..., heads, Sq, D]`` to ``[..., kv_heads, Sk, D]``; ``keep`` is ``[..., Sq, Sk]``."""
    q, k, v = wide(q, k, v)
    group = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(group, dim=-3), v.repeat_interleave(group, dim=-3)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    if keep is None:
        return scores.softmax(dim=-1) @ v
    hidden = ~keep.unsqueeze(-3)
    # a row without any key has no softmax: its zeros come from the second fill
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1).masked_fill(hidden, 0) @ v


def batch(t: torch.Tensor) -> int:
    """How many sequences a padded tensor holds, whatever its leading dimensions."""
    return math.prod(t.shape[:-3])


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    ragged = attribute(facts, "layout", "padded") == "ragged"
    causal, window = attribute(facts, "causal", False), attribute(facts, "window", None)
    scale = attribute(facts, "scale", None)
    soft_cap = attribute(facts, "soft_cap", None)
    dtype = dtype_of(facts, "o")

    def run(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_k: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        state: object = None,
    ) -> torch.Tensor:
        keep: torch.Tensor | None
        if ragged:
            assert cu_seqlens_q is not None
            assert cu_seqlens_k is not None
            rows, keys, values = (t.reshape(1, -1, *t.shape[-2:]) for t in (q, k, v))
            query, key = segment(cu_seqlens_q, rows.shape[1]), segment(cu_seqlens_k, keys.shape[1])
            keep = segmented(query, key, cu_seqlens_q.diff(), cu_seqlens_k.diff(), causal, window)
        else:
            rows, keys, values = (t.reshape(batch(t), *t.shape[-3:]) for t in (q, k, v))
            keep = both(mask, padded(rows.shape[1], keys.shape[1], causal, window, q.device))
        o = attend(rows.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), keep, scale, soft_cap)
        return give(o.transpose(1, 2).reshape(q.shape), dtype, out)

    return Prepared(run)
