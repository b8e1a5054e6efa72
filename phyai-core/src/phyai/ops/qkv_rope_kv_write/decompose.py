"""The projection, rotation and cache write as a chain of three ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phyai.facts import Facts


def compose(sites: Mapping[str, Any], facts: Facts) -> Callable[..., Any]:
    """``run(x, positions, k_cache, v_cache, slots, out=None, state=None)``: gemm, rope, cache write."""
    qkv, rope, kv_write = sites["qkv"], sites["rope"], sites["kv_write"]
    heads, kv_heads, head_dim = (facts[f"attrs.{name}"] for name in ("heads", "kv_heads", "head_dim"))
    split = (heads, kv_heads, kv_heads)

    def run(x: Any, positions: Any, k_cache: Any, v_cache: Any, slots: Any, out: Any = None, state: Any = None) -> Any:
        q, k, v = qkv.run(x).unflatten(-1, (-1, head_dim)).split(split, dim=-2)
        q, k = rope.run(q, k, positions, out=None if out is None else (out, k))
        kv_write.run(k, v, k_cache, v_cache, slots)
        return q

    return run
