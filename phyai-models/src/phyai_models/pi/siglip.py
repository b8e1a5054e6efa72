"""SigLIP's vision tower, and the projection of its patches to the language model's width."""

from __future__ import annotations

import torch

from phyai_models.layers import MLP, Layer, LayerNorm, Linear, PatchEmbedding, Scope, SelfAttention
from phyai_models.pi.config import SiglipConfig


class SiglipLayer(Layer):
    """Pre-norm transformer layer: ``x += attention(norm(x)); x += mlp(norm(x))``."""

    def __init__(self, scope: Scope, config: SiglipConfig) -> None:
        width, eps = config.hidden_size, config.layer_norm_eps
        self.layer_norm1 = LayerNorm(scope.at("layer_norm1"), width, eps)
        self.self_attn = SelfAttention(scope.at("self_attn"), width, config.num_attention_heads)
        self.layer_norm2 = LayerNorm(scope.at("layer_norm2"), width, eps)
        self.mlp = MLP(scope.at("mlp"), width, config.intermediate_size, "gelu_tanh")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class Siglip(Layer):
    """Images ``[N, 3, S, S]`` in [-1, 1] to patch features ``[N, P, projection]``."""

    def __init__(self, tower: Scope, projector: Scope, config: SiglipConfig, projection: int) -> None:
        self.embeddings = PatchEmbedding(tower.at("embeddings"), config.hidden_size, config.patch_size, config.patches)
        layers = tower.at("layers", "encoder.layers")
        self.layers = [SiglipLayer(layers.at(str(i)), config) for i in range(config.num_hidden_layers)]
        self.post_layernorm = LayerNorm(tower.at("post_layernorm"), config.hidden_size, config.layer_norm_eps)
        self.projector = Linear(projector, config.hidden_size, projection, bias=True)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        x = self.embeddings(images)
        for layer in self.layers:
            x = layer(x)
        return self.projector(self.post_layernorm(x))
