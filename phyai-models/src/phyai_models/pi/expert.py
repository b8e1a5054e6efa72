"""The action expert: Gemma layers that attend to the prefix's keys and to the action tokens themselves.

π0's takes time as part of its tokens and is plain Gemma; π0.5's takes it through adaptive normalization.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from phyai_models.layers import (
    AdaRMSNorm,
    GatedMLP,
    KVCache,
    Layer,
    PagedAttention,
    RMSNorm,
    Scope,
    Stack,
    Tokens,
)
from phyai_models.pi.config import GemmaConfig
from phyai_models.pi.gemma import GemmaLayer


class Expert(Layer):
    """π0's expert: embeddings ``[T, width]`` to normalized hidden states ``[T, width]``."""

    def __init__(self, scope: Scope, config: GemmaConfig, cos_sin: torch.Tensor) -> None:
        layers = scope.at("layers")
        self.layers = [GemmaLayer(layers.at(str(i)), config, cos_sin, first=i == 0) for i in range(config.depth)]
        self.norm = RMSNorm(scope.at("norm"), config.width, config.rms_norm_eps, add=True)

    def matrices(self) -> dict[str, Stack] | None:
        """The matrices of all layers as ``expert_steps`` names them; None where one is quantized or in parts."""
        return stacked(self.layers)

    def modulation(self) -> torch.Tensor:
        """Its normalizations ``[norms, 3 * width]`` as adaptive ones of any time: the weight is the scale, nothing is
        shifted, and what a branch computed is added as it is."""
        norms = [norm for layer in self.layers for norm in layer.norms]
        scale = torch.stack([norm.weights["weight"] for norm in (*norms, self.norm)])
        return torch.cat([scale, torch.zeros_like(scale), torch.ones_like(scale)], dim=1)

    def __call__(self, x: torch.Tensor, tokens: Tokens, cache: KVCache) -> torch.Tensor:
        residual: torch.Tensor | None = None
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            x, residual = layer(x, residual, tokens, keys, values)
        assert residual is not None  # a tower has at least one layer
        return self.norm(x, residual)


class AdaLayer(Layer):
    """A Gemma layer with adaptive normalization: ``x += gate * attention(norm(x)); x += gate * mlp(norm(x))``,
    where scale and shift of each normalization, and the gate of its branch, follow from the condition."""

    def __init__(self, scope: Scope, config: GemmaConfig, cos_sin: torch.Tensor) -> None:
        width, eps = config.width, config.rms_norm_eps
        self.input_layernorm = AdaRMSNorm(scope.at("input_layernorm"), width, eps)
        self.self_attn = PagedAttention(
            scope.at("self_attn"), width, config.num_heads, config.num_kv_heads, config.head_dim, cos_sin, add=True
        )
        self.post_attention_layernorm = AdaRMSNorm(scope.at("post_attention_layernorm"), width, eps)
        self.mlp = GatedMLP(scope.at("mlp"), width, config.mlp_dim, "gelu_tanh", add=True)

    def __call__(
        self,
        x: torch.Tensor,
        modulations: tuple[torch.Tensor, torch.Tensor],
        tokens: Tokens,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        normed, gate = self.input_layernorm(x, modulations[0])
        x = self.self_attn(normed, tokens, keys, values, x, gate)
        normed, gate = self.post_attention_layernorm(x, modulations[1])
        return self.mlp(normed, x, gate)


class AdaExpert(Layer):
    """π0.5's expert: embeddings ``[T, width]`` and the modulations of one time to hidden states ``[T, width]``."""

    def __init__(self, scope: Scope, config: GemmaConfig, cos_sin: torch.Tensor) -> None:
        layers = scope.at("layers")
        self.layers = [AdaLayer(layers.at(str(i)), config, cos_sin) for i in range(config.depth)]
        self.norm = AdaRMSNorm(scope.at("norm"), config.width, config.rms_norm_eps)

    def matrices(self) -> dict[str, Stack] | None:
        """The matrices of all layers as ``expert_steps`` names them; None where one is quantized or in parts."""
        return stacked(self.layers)

    def modulate(self, condition: torch.Tensor) -> list[torch.Tensor]:
        """Modulations ``[S, 3 * width]`` of all normalizations, in order, for conditions ``[S, width]``."""
        norms = [norm for layer in self.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
        return [norm.modulate(condition) for norm in (*norms, self.norm)]

    def __call__(
        self, x: torch.Tensor, modulations: Sequence[torch.Tensor], tokens: Tokens, cache: KVCache
    ) -> torch.Tensor:
        """``modulations`` are those of one time, each ``[1, 3 * width]``."""
        for i, (layer, keys, values) in enumerate(zip(self.layers, cache.keys, cache.values, strict=True)):
            x = layer(x, (modulations[2 * i], modulations[2 * i + 1]), tokens, keys, values)
        normed, _ = self.norm(x, modulations[-1])
        return normed


def stacked(layers: Sequence[GemmaLayer | AdaLayer]) -> dict[str, Stack] | None:
    """The matrices of ``layers`` as ``expert_steps`` names them; None where one of them is quantized or in parts."""
    found = [_matrices(layer.self_attn, layer.mlp) for layer in layers]
    if any(matrices is None for matrices in found):
        return None
    return {name: Stack([matrices[name] for matrices in found if matrices is not None]) for name in found[0] or {}}


def _matrices(self_attn: PagedAttention, mlp: GatedMLP) -> dict[str, torch.Tensor] | None:
    attention, feed_forward, projections = self_attn.qkv.fused, mlp.fused, self_attn.o_proj.matmul.sites
    if attention is None or feed_forward is None or len(projections) > 1:
        return None
    found = {
        "qkv": attention.weights["weight"],
        "o": projections[0].weights["weight"],
        "gate_up": feed_forward.weights["gate_up"],
        "down": feed_forward.weights["down"],
    }
    return found if all(isinstance(matrix, torch.Tensor) for matrix in found.values()) else None
