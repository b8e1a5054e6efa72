"""SigLIP's vision tower, and the projection of its patches to the language model's width."""

from __future__ import annotations

import torch

from phyai_models.layers import MLP, Layer, LayerNorm, Linear, PatchEmbedding, Scope, SelfAttention
from phyai_models.pi.config import SiglipConfig


class SiglipLayer(Layer):
    """Pre-norm transformer layer: ``x += attention(norm(x)); x += mlp(norm(x))``.

    The residual stream and what was last computed travel separately, so that each addition happens inside
    the normalization that reads its result. The ``first`` layer has nothing to add yet.
    """

    def __init__(self, scope: Scope, config: SiglipConfig, *, first: bool) -> None:
        width, eps = config.hidden_size, config.layer_norm_eps
        self.layer_norm1 = LayerNorm(scope.at("layer_norm1"), width, eps, add=not first)
        self.self_attn = SelfAttention(scope.at("self_attn"), width, config.num_attention_heads)
        self.layer_norm2 = LayerNorm(scope.at("layer_norm2"), width, eps, add=True)
        self.mlp = MLP(scope.at("mlp"), width, config.intermediate_size, "gelu_tanh")

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        normed = self.layer_norm1(x) if residual is None else self.layer_norm1(x, residual)
        residual = x if residual is None else residual
        attended = self.self_attn(normed)
        return self.mlp(self.layer_norm2(attended, residual)), residual


class Siglip(Layer):
    """Images ``[N, 3, S, S]`` in [-1, 1], float32, to patch features ``[N, P, projection]``."""

    def __init__(self, tower: Scope, projector: Scope, config: SiglipConfig, projection: int) -> None:
        count, width, eps = config.num_hidden_layers, config.hidden_size, config.layer_norm_eps
        self.embeddings = PatchEmbedding(tower.at("embeddings"), width, config.patch_size, config.image_size)
        layers = tower.at("layers", "encoder.layers")
        self.layers = [SiglipLayer(layers.at(str(i)), config, first=i == 0) for i in range(count)]
        self.post_layernorm = LayerNorm(tower.at("post_layernorm"), width, eps, add=True)
        self.projector = Linear(projector, width, projection, bias=True)

    def __call__(self, images: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        x, residual = self.layers[0](self.embeddings(images), None)
        for layer in self.layers[1:]:
            x, residual = layer(x, residual)
        return self.projector(self.post_layernorm(x, residual), out=out)
