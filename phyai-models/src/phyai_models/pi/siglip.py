"""SigLIP's vision tower, and the projection of its patches to the language model's width."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from phyai.dispatch import Chain, Site

from phyai_models.layers import MLP, Layer, LayerNorm, Linear, PatchEmbedding, Scope, SelfAttention, Stack
from phyai_models.pi.config import SiglipConfig
from phyai_models.weights import WeightSource

ACTIVATION = "gelu_tanh"


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
        self.mlp = MLP(scope.at("mlp"), width, config.intermediate_size, ACTIVATION)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        normed = self.layer_norm1(x) if residual is None else self.layer_norm1(x, residual)
        residual = x if residual is None else residual
        attended = self.self_attn(normed)
        return self.mlp(self.layer_norm2(attended, residual)), residual

    def weights(self) -> dict[str, Any]:
        """Its weights as ``transformer_encoder`` names them."""
        norms = {"norm1": self.layer_norm1, "norm2": self.layer_norm2}
        found: dict[str, Any] = dict(self.mlp.site.weights)
        found |= {f"{name}_{vector}": norm.weights[vector] for name, norm in norms.items() for vector in norm.vectors}
        for name, projection in (("qkv", self.self_attn.qkv_proj), ("o", self.self_attn.out_proj)):
            sites = projection.matmul.sites
            whole = sites[0].weights if len(sites) == 1 else {}
            found |= {name: whole.get("weight"), f"{name}_bias": whole.get("bias")}
        return found


class SiglipEncoder(Layer):
    """All layers and the normalization behind them: ``[N, P, width]`` to ``[N, P, width]``.

    They are one call of ``transformer_encoder``, whose decomposition they are themselves. Where a matrix is quantized
    there is no such call.
    """

    def __init__(self, tower: Scope, config: SiglipConfig) -> None:
        self.scope, self.config = tower, config
        count, layers = config.num_hidden_layers, tower.at("layers", "encoder.layers")
        self.layers = [SiglipLayer(layers.at(str(i)), config, first=i == 0) for i in range(count)]
        self.post_layernorm = LayerNorm(tower.at("post_layernorm"), config.hidden_size, config.layer_norm_eps, add=True)
        self.site: Site | None = None

    def load(self, source: WeightSource) -> None:
        known = len(self.scope.dispatcher.sites)
        super().load(source)
        matrices = stacked(self.layers)
        if matrices is None:
            return
        config, layers = self.config, weakref.proxy(self)  # whose sites it is in turn one of
        norm = {f"norm_{name}": vector for name, vector in self.post_layernorm.weights.items()}
        self.site = self.scope.bind(
            "transformer_encoder",
            weights={**matrices, **norm},
            attrs={"heads": config.num_attention_heads, "eps": config.layer_norm_eps, "activation": ACTIVATION},
            dtypes=dict.fromkeys("xy", self.scope.dtype),
            chain=Chain(
                lambda x, out=None, state=None: layers.layer_by_layer(x, out),
                tuple(self.scope.dispatcher.sites[known:]),
            ),
        )

    def refresh(self, source: WeightSource) -> None:
        super().refresh(source)
        if self.site is not None:
            self.site.refresh(self.site.weights)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.site is None:
            return self.layer_by_layer(x)
        y: torch.Tensor = self.site.run(x)
        return y

    def layer_by_layer(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The same, one call after the other."""
        residual: torch.Tensor | None = None
        for layer in self.layers:
            x, residual = layer(x, residual)
        assert residual is not None  # a tower has at least one layer
        y = self.post_layernorm(x, residual)
        return y if out is None else out.copy_(y)


class Siglip(Layer):
    """Images ``[N, 3, S, S]`` in [-1, 1], float32, to patch features ``[N, P, projection]``."""

    def __init__(self, tower: Scope, projector: Scope, config: SiglipConfig, projection: int) -> None:
        width = config.hidden_size
        self.embeddings = PatchEmbedding(tower.at("embeddings"), width, config.patch_size, config.image_size)
        self.encoder = SiglipEncoder(tower, config)
        self.projector = Linear(projector, width, projection, bias=True)

    def __call__(self, images: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.projector(self.encoder(self.embeddings(images)), out=out)


def stacked(layers: Sequence[SiglipLayer]) -> dict[str, Stack] | None:
    """The weights of ``layers`` as ``transformer_encoder`` names them; None where a matrix is quantized or in parts."""
    found = [layer.weights() for layer in layers]
    if not all(isinstance(weight, torch.Tensor) for weights in found for weight in weights.values()):
        return None
    return {name: Stack([weights[name] for weights in found]) for name in found[0]}
