"""``cuda.qkv_rope_kv_write.skinny_*``: a product of :mod:`.gemm` that rotates its heads, in the same launch, and writes
keys and values to their slots of the caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.runtime.early import settling
from phyai_backend_cuda.runtime.memory import aligned, output
from phyai_backend_cuda.skinny.epilogues import Heads, head_arguments
from phyai_backend_cuda.skinny.gemm import Product


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    heads = Heads(
        heads=whole(facts, "attrs.heads"), kv_heads=whole(facts, "attrs.kv_heads"),
        head_dim=whole(facts, "attrs.head_dim"), rotary_dim=whole(facts, "shape.rotary_dim"),
        neox=facts.get("attrs.style", "neox") == "neox",
    )  # fmt: skip
    product = Product(weights["weight"], weights.get("bias"), facts, params, heads=heads)
    product.load(resources.rows)
    cos_sin = aligned(weights["cos_sin"])

    def run(
        x: torch.Tensor, positions: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor,
        out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        q = output(x, out, len(x), heads.heads, heads.head_dim)
        if not len(x):
            return q
        place = q if pairwise(q) else torch.empty_like(q, memory_format=torch.contiguous_format)
        direct, caches = pairwise(k_cache) and pairwise(v_cache), [k_cache, v_cache]
        positions, at = positions.contiguous(), slots.contiguous()
        if not direct:  # rows by themselves, to be put in their places
            caches = [torch.empty(1, len(x), *c.shape[2:], dtype=c.dtype, device=c.device) for c in caches]
            at = torch.arange(len(x), device=x.device)
        product.launch(x, place, head_arguments(place, positions, at, cos_sin, caches[0], caches[1]))
        if place is not q:
            q.copy_(place)
        if not direct:
            page, offset = slots // k_cache.shape[1], slots % k_cache.shape[1]
            for cache, rows in zip((k_cache, v_cache), caches, strict=True):
                cache[page, offset] = rows[0]
        return q

    def refresh(new: Mapping[str, Any]) -> None:
        product.refresh(new["weight"], new.get("bias"))
        cos_sin.copy_(new["cos_sin"])

    return settling(run, refresh)


def pairwise(tensor: torch.Tensor) -> bool:
    """Whether two neighbouring elements (16-bit) of its last dimension can be written at once."""
    even = not any(stride % 2 for stride in tensor.stride()[:-1])
    return tensor.stride(-1) == 1 and even and not tensor.data_ptr() % 4
