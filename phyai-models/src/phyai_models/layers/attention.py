"""Self-attention over one sequence, and attention over a paged cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from phyai_models.layers.base import Layer
from phyai_models.layers.linear import Linear, LinearParameters, Shard
from phyai_models.layers.scope import Scope
from phyai_models.layers.tokens import Tokens
from phyai_models.weights import TensorSpec, WeightSource


class SelfAttention(Layer):
    """Bidirectional multi-head attention within each sequence of ``x [N, S, width]``, with biases."""

    def __init__(self, scope: Scope, width: int, heads: int) -> None:
        self.scope = scope
        self.heads, self.head_dim = heads, width // heads
        shards = [Shard(f"{scope.source}.{name}", width) for name in ("q_proj", "k_proj", "v_proj")]
        self.qkv_proj = Linear(scope.at("qkv_proj"), width, 3 * width, bias=True, shards=shards)
        self.out_proj = Linear(scope.at("out_proj"), width, width, bias=True)

    def load(self, source: WeightSource) -> None:
        super().load(source)
        dtypes = dict.fromkeys(("q", "k", "v"), self.scope.dtype)
        dims = {"heads": self.heads, "kv_heads": self.heads, "head_dim": self.head_dim}
        self.attention = self.scope.bind("attention", attrs={"layout": "padded"}, dtypes=dtypes, dims=dims)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv_proj(x).view(*x.shape[:-1], 3, self.heads, self.head_dim).unbind(-3)
        return self.out_proj(self.attention.run(q, k, v).flatten(-2))


class PagedAttention(Layer):
    """Grouped-query attention of ragged tokens over a paged cache that their own keys are written to first.

    With ``keys_only`` nothing attends here: only the keys and values are computed and written, the query's rows
    of the matrix are not even loaded.
    """

    def __init__(
        self,
        scope: Scope,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        cos_sin: torch.Tensor,
        *,
        keys_only: bool = False,
    ) -> None:
        self.scope = scope
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.cos_sin = cos_sin
        self.keys_only = keys_only
        rows = {"q_proj": heads * head_dim, "k_proj": kv_heads * head_dim, "v_proj": kv_heads * head_dim}
        shards = {name: Shard(f"{scope.source}.{name}", n) for name, n in rows.items()}
        used = [shard for name, shard in shards.items() if not (keys_only and name == "q_proj")]
        self.qkv = LinearParameters(scope.at("qkv_proj"), width, used)
        self.unused = [TensorSpec(f"{s.source}.weight", (s.rows, width)) for s in shards.values() if s not in used]
        self.o_proj = Linear(scope.at("o_proj"), heads * head_dim, width)

    def tensors(self) -> Iterator[TensorSpec]:
        yield from self.qkv.tensors()
        yield from self.unused
        yield from self.o_proj.tensors()

    def load(self, source: WeightSource) -> None:
        weights = self.qkv.load(source)
        dtype, here = self.scope.dtype, self.scope
        heads = {"kv_heads": self.kv_heads, "head_dim": self.head_dim}
        cache = {"k_cache": dtype, "v_cache": dtype}
        if self.keys_only:
            self.kv_proj = self.qkv.scope.bind(
                "gemm", weights=weights.tensors, facts=weights.facts, dtypes={"x": dtype}
            )
            self.rope = here.bind(
                "rope", weights={"cos_sin": self.cos_sin}, attrs={"style": "neox"},
                dtypes={"q": dtype, "k": dtype, "positions": torch.int64, "cos_sin": self.cos_sin.dtype},
                dims={"heads": self.kv_heads, **heads},
            )  # fmt: skip
            self.kv_write = here.bind("kv_write", dtypes={"k": dtype, "v": dtype, **cache}, dims=heads)
            return
        self.qkv_rope_kv_write = here.bind(
            "qkv_rope_kv_write",
            weights={"weight": weights.bound, "cos_sin": self.cos_sin},
            attrs={"heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim, "style": "neox"},
            facts=weights.facts_of("qkv"),
            dtypes={"x": dtype, "positions": torch.int64, **cache},
        )
        self.attention = here.bind(
            "attention_paged",
            attrs={"single_page": True},
            dtypes={"q": dtype, **cache},
            dims={"heads": self.heads, **heads},
        )
        self.o_proj.load(source)

    def __call__(self, x: torch.Tensor, tokens: Tokens, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """``x [T, width]`` to ``[T, width]``; writes ``tokens.slots`` of the layer's ``keys`` and ``values``."""
        q = self.qkv_rope_kv_write.run(x, tokens.positions, keys, values, tokens.slots)
        o = self.attention.run(q, keys, values, state=tokens.state(self.attention, keys))
        return self.o_proj(o.flatten(-2))

    def write_keys(self, x: torch.Tensor, tokens: Tokens, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Compute and write the keys and values of ``x [T, width]``, and nothing else."""
        k, v = self.kv_proj.run(x).unflatten(-1, (2, self.kv_heads, self.head_dim)).unbind(-3)
        _, k = self.rope.run(k, k, tokens.positions)  # the op rotates queries and keys; there are no queries here
        self.kv_write.run(k, v, keys, values, tokens.slots)
