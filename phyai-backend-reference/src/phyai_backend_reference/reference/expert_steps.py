"""``reference.expert_steps``: the whole loop, in fp32 (fp64 for fp64) from end to end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, dtype_of, give, size
from phyai_backend_reference.reference.activation import FUNCTIONS


def _norm(x: torch.Tensor, modulation: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    scale, shift, gate = modulation.chunk(3, -1)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + scale) + shift, gate


def _rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """``x [B, queries, heads, head_dim]`` by angles ``[B, queries, head_dim]``, neox style."""
    cos, sin = cos_sin[:, :, None].chunk(2, -1)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    heads, eps = attribute(facts, "heads", 1), attribute(facts, "eps", 1e-6)
    activation, dtype = FUNCTIONS[attribute(facts, "activation", "silu")], dtype_of(facts, "y")
    steps, head_dim = size(facts, "steps"), size(facts, "head_dim")
    kv_heads, layers = size(facts, "kv_heads"), size(facts, "layers")

    def run(
        x: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, lengths: torch.Tensor,
        fixed: torch.Tensor | None = None, out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        batch, page_size = len(lengths), k_cache.shape[2]
        dtypes = {t.dtype for t in (x, k_cache, v_cache, fixed, *weights.values()) if t is not None}
        computed = torch.float64 if torch.float64 in dtypes else torch.float32
        a = x.to(computed).reshape(batch, -1, x.shape[-1]) if batch else x.to(computed)
        front = int(fixed is not None)
        queries = a.shape[1] + front
        own = lengths.long()[:, None] + torch.arange(queries, device=x.device)  # positions, and slots of a page
        slots = torch.arange(page_size, device=x.device)
        seen = (slots < lengths[:, None])[:, None, None]  # [B, 1, 1, page_size]
        angles = weights["cos_sin"][own].to(computed)
        new = torch.ones(queries, queries, dtype=torch.bool, device=x.device)
        new[:front, front:] = False

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int) -> torch.Tensor:
            unseen = ~seen[:, 0, 0, :, None, None]
            past = (c[layer, :batch].to(computed).masked_fill(unseen, 0) for c in (k_cache, v_cache))
            k, v = (torch.cat([p, n], 1).transpose(1, 2) for p, n in zip(past, (k, v), strict=True))
            keep = torch.cat([seen.expand(-1, -1, queries, -1), new.expand(batch, 1, -1, -1)], -1)
            scores = q.transpose(1, 2).unflatten(1, (kv_heads, -1)) @ k[:, :, None].transpose(-1, -2) * head_dim**-0.5
            scores = scores.masked_fill(~keep[:, :, None], -torch.inf)
            return (scores.softmax(-1) @ v[:, :, None]).flatten(1, 2).transpose(1, 2).flatten(2)

        def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))

        def embed(a: torch.Tensor, step: int) -> torch.Tensor:
            h = product(a, weights["in_weight"], weights["in_bias"])
            if weights.get("time") is not None:
                h = h + weights["time"][step].to(computed)
            if weights.get("embed_weight") is not None:
                h = product(F.silu(h), weights["embed_weight"])
            bias = weights.get("embed_bias")
            return h if bias is None else h + bias.to(computed)

        for step in range(steps if a.numel() else 0):
            modulation = weights["modulation"][step].to(computed)
            h = embed(a, step)
            if fixed is not None:
                h = torch.cat([fixed.to(computed)[:, None], h], 1)
            for i in range(layers):
                y, gate = _norm(h, modulation[2 * i], eps)
                qkv = product(y, weights["qkv"][i]).unflatten(-1, (-1, head_dim))
                q, k, v = qkv.split((heads, kv_heads, kv_heads), -2)
                h = h + gate * product(attend(_rotate(q, angles), _rotate(k, angles), v, i), weights["o"][i])
                y, gate = _norm(h, modulation[2 * i + 1], eps)
                g, u = product(y, weights["gate_up"][i]).chunk(2, -1)
                h = h + gate * product(activation(g) * u, weights["down"][i])
            y, _ = _norm(h[:, front:], modulation[-1], eps)
            a = a - product(y, weights["out_weight"], weights["out_bias"]) / steps
        return give(a.reshape(x.shape), dtype, out)

    return Prepared(run, refresh=in_place(weights))
