"""Gemma layers over a paged cache: the prefix of π models, and the expert of π0."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from phyai_models.layers import GatedMLP, KeysToCache, KVCache, Layer, PagedAttention, RMSNorm, Scope, Tokens, Unused
from phyai_models.pi.config import GemmaConfig


def rotary_table(config: GemmaConfig, positions: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Cosines, then sines, of every position and frequency: ``[positions, head_dim]``.

    Angles are computed in float32, as the published implementations compute them (float64 for a float64 model).
    """
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    frequency = config.rope_theta ** -(torch.arange(0, config.head_dim, 2, dtype=exact) / config.head_dim)
    angles = torch.arange(positions, dtype=exact)[:, None] * frequency
    return torch.cat([angles.cos(), angles.sin()], dim=-1).to(device)


class GemmaLayer(Layer):
    """Pre-norm layer: ``x += attention(norm(x)); x += mlp(norm(x))``.

    The residual stream and what was last computed travel separately, so that each addition happens inside
    the normalization that reads its result, and that inside the block behind it. The ``first`` layer has nothing to
    add yet.
    """

    def __init__(self, scope: Scope, config: GemmaConfig, cos_sin: torch.Tensor, *, first: bool) -> None:
        width, eps = config.width, config.rms_norm_eps
        input_layernorm = RMSNorm(scope.at("input_layernorm"), width, eps, add=not first)
        self.self_attn = PagedAttention(
            scope.at("self_attn"), width, config.num_heads, config.num_kv_heads, config.head_dim, cos_sin,
            norm=input_layernorm,
        )  # fmt: skip
        post_attention_layernorm = RMSNorm(scope.at("post_attention_layernorm"), width, eps, add=True)
        self.mlp = GatedMLP(scope.at("mlp"), width, config.mlp_dim, "gelu_tanh", norm=post_attention_layernorm)
        self.norms = input_layernorm, post_attention_layernorm

    def parts(self) -> Iterator[Layer]:
        yield from (self.self_attn, self.mlp)  # the norms are theirs

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, tokens: Tokens, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        attended = self.self_attn(x, tokens, keys, values, residual=residual)
        residual = x if residual is None else residual
        return self.mlp(attended, residual=residual), residual


class GemmaKeys(Layer):
    """The last layer of a prefix of which only keys and values are read: the rest of it computes nothing."""

    def __init__(self, scope: Scope, config: GemmaConfig, cos_sin: torch.Tensor, *, first: bool) -> None:
        full = GemmaLayer(scope, config, cos_sin, first=first)
        self.self_attn = KeysToCache(
            scope.at("self_attn"), config.width, 0, config.num_kv_heads, config.head_dim, cos_sin, norm=full.norms[0]
        )
        used = {spec.name for spec in self.self_attn.tensors()}
        self.unused = Unused(spec for spec in full.tensors() if spec.name not in used)

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, tokens: Tokens, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        self.self_attn(x, tokens, keys, values, residual)


class GemmaPrefix(Layer):
    """The language model as the source of keys and values: fills the cache from embeddings ``[T, width]``.

    The output of its last layer is never read. Unless ``full_last_layer``, nothing of it beyond its keys and
    values is computed.
    """

    def __init__(self, scope: Scope, config: GemmaConfig, cos_sin: torch.Tensor, *, full_last_layer: bool) -> None:
        last = config.depth - 1
        layers = scope.at("layers")
        self.layers: list[GemmaLayer | GemmaKeys] = [
            (GemmaLayer if i < last or full_last_layer else GemmaKeys)(layers.at(str(i)), config, cos_sin, first=i == 0)
            for i in range(config.depth)
        ]
        self.unused = Unused(RMSNorm(scope.at("norm"), config.width, config.rms_norm_eps).tensors())

    def __call__(self, x: torch.Tensor, tokens: Tokens, cache: KVCache) -> None:
        residual: torch.Tensor | None = None
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            computed = layer(x, residual, tokens, keys, values)
            if computed is not None:
                x, residual = computed
