"""Self-attention within padded sequences, and attention of ragged tokens over a paged cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from phyai_models.layers.base import Layer
from phyai_models.layers.linear import Linear, LinearParameters, Matmul, Shard
from phyai_models.layers.norm import RMSNorm
from phyai_models.layers.normed import Normed
from phyai_models.layers.scope import Scope
from phyai_models.layers.tokens import Tokens
from phyai_models.weights import TensorSpec, WeightSource


class SelfAttention(Layer):
    """Bidirectional multi-head attention within each sequence of ``x [N, S, width]``, with biases."""

    def __init__(self, scope: Scope, width: int, heads: int) -> None:
        self.scope = scope
        self.heads, self.head_dim = heads, width // heads
        shards = [Shard.of(scope, name, width) for name in ("q_proj", "k_proj", "v_proj")]
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


class KeysToCache(Normed):
    """Project ragged tokens to queries, keys and values, rotate, and write keys and values to a paged cache.

    With ``heads=0`` there are no queries: their rows of the matrix are not even loaded. A ``norm`` stands in front.
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
        norm: RMSNorm | None = None,
    ) -> None:
        self.scope = scope
        self.norm = norm
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.cos_sin = cos_sin
        counts = {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads}
        shards = [Shard.of(scope, name, n * head_dim) for name, n in counts.items() if n]
        self.qkv = LinearParameters(scope.at("qkv_proj"), width, shards)

    def tensors(self) -> Iterator[TensorSpec]:
        yield from super().tensors()
        yield from self.qkv.tensors()

    def refresh(self, source: WeightSource) -> None:
        weights = self.qkv.load_again(source)
        if self.fused is None:
            self.refresh_norm(source)
            self.matmul.refresh(weights)
            return
        self.refresh_fused(source, {"weight": weights[0].weight, "cos_sin": self.cos_sin})

    def load(self, source: WeightSource) -> None:
        weights = self.qkv.load(source)
        dtype = self.scope.dtype
        cache = {"k_cache": dtype, "v_cache": dtype}
        heads = {"kv_heads": self.kv_heads, "head_dim": self.head_dim}
        if self.heads and len(weights) == 1:
            self.bind_fused(
                "qkv_rope_kv_write",
                source,
                weights={"weight": weights[0].weight, "cos_sin": self.cos_sin},
                attrs={"heads": self.heads, **heads, "style": "neox"},
                facts=weights[0].facts_of("qkv"),
                layouts=weights[0].layouts(),
                dtypes={"x": dtype, "positions": torch.int64, **cache},
                dims={**heads, **self.scope.cache},
            )
            return
        self.load_norm(source)
        self.matmul = Matmul(self.qkv.scope, weights)
        self.rope = self.scope.bind(
            "rope",
            weights={"cos_sin": self.cos_sin},
            attrs={"style": "neox"},
            dtypes={"q": dtype, "k": dtype, "positions": torch.int64, "cos_sin": self.cos_sin.dtype},
            dims={"heads": self.heads or self.kv_heads, **heads},
        )
        self.kv_write = self.scope.bind(
            "kv_write", dtypes={"k": dtype, "v": dtype, **cache}, dims={**heads, **self.scope.cache}
        )

    def __call__(
        self,
        x: torch.Tensor,
        tokens: Tokens,
        keys: torch.Tensor,
        values: torch.Tensor,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The queries ``[T, heads, head_dim]`` of ``x [T, width]``; writes ``tokens.slots`` of the caches."""
        inputs = self.inputs(x, residual)
        if self.fused is not None:
            fused: torch.Tensor = self.fused.run(*inputs, tokens.positions, keys, values, tokens.slots)
            return fused
        heads = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = torch.split(self.matmul(*inputs).view(len(x), sum(heads), self.head_dim), heads, dim=1)
        if self.heads:
            q, k = self.rope.run(q, k, tokens.positions)
        else:
            _, k = self.rope.run(k, k, tokens.positions)  # the op rotates both, and here are only keys
        self.kv_write.run(k, v, keys, values, tokens.slots)
        return q


class PagedAttention(Layer):
    """Grouped-query attention of ragged tokens over a paged cache that their own keys are written to first.

    With ``add`` it is called with a residual and a gate behind all else, and gives ``residual + gate * attention(x)``.
    With a ``norm`` that adds it is called with the ``residual`` of that.
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
        add: bool = False,
        norm: RMSNorm | None = None,
    ) -> None:
        self.scope = scope
        self.dims = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        self.qkv = KeysToCache(scope, width, heads, kv_heads, head_dim, cos_sin, norm=norm)
        self.o_proj = Linear(scope.at("o_proj"), heads * head_dim, width, add=add)

    def load(self, source: WeightSource) -> None:
        super().load(source)
        dtypes = dict.fromkeys(("q", "k_cache", "v_cache"), self.scope.dtype)
        attrs = {"single_page": True, "fixed_lengths": self.scope.fixed_lengths}
        self.attention = self.scope.bind(
            "attention_paged", attrs=attrs, dtypes=dtypes, dims={**self.dims, **self.scope.cache}
        )

    def __call__(
        self,
        x: torch.Tensor,
        tokens: Tokens,
        keys: torch.Tensor,
        values: torch.Tensor,
        *onto: torch.Tensor,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``x [T, width]`` to ``[T, width]``; writes ``tokens.slots`` of the layer's ``keys`` and ``values``."""
        q = self.qkv(x, tokens, keys, values, residual)
        o = self.attention.run(q, keys, values, state=tokens.state(self.attention, keys))
        return self.o_proj(o.flatten(-2), *onto)
