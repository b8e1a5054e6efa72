"""Embeddings of tokens and of image patches."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from phyai_models.layers.base import Layer
from phyai_models.layers.scope import Scope
from phyai_models.weights import TensorSpec, WeightSource


class Embedding(Layer):
    """Rows of a table ``[vocabulary, width]`` times ``scale``, by token id.

    The factor is rounded to the table's dtype first, as transformers' Gemma does.
    """

    def __init__(self, scope: Scope, vocabulary: int, width: int, scale: float) -> None:
        self.scope = scope
        self.shape = (vocabulary, width)
        self.scale = scale

    def tensors(self) -> Iterator[TensorSpec]:
        yield TensorSpec(f"{self.scope.source}.weight", self.shape)

    def read(self, source: WeightSource) -> torch.Tensor:
        weight = self.scope.empty(*self.shape)
        source.take(f"{self.scope.source}.weight", weight)
        return weight

    def load(self, source: WeightSource) -> None:
        weight = self.read(source)
        scale = float(torch.tensor(self.scale, dtype=weight.dtype))
        self.site = self.scope.bind(
            "embedding", weights={"weight": weight}, attrs={"scale": scale},
            dtypes={"ids": torch.int64, "weight": weight.dtype, "y": weight.dtype},
        )  # fmt: skip

    def refresh(self, source: WeightSource) -> None:
        self.site.refresh({"weight": self.read(source)})

    def __call__(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        y: torch.Tensor = self.site.run(ids, out=out)
        return y


class PatchEmbedding(Layer):
    """Images ``[N, 3, size, size]`` in float32 to patches ``[N, (size // patch)**2, width]``, with learned positions
    added."""

    def __init__(self, scope: Scope, width: int, patch: int, size: int) -> None:
        self.scope = scope
        self.width, self.patch, self.size = width, patch, size
        self.patches = (size // patch) ** 2

    def tensors(self) -> Iterator[TensorSpec]:
        source = self.scope.source
        yield TensorSpec(f"{source}.patch_embedding.weight", (self.width, 3, self.patch, self.patch))
        yield TensorSpec(f"{source}.patch_embedding.bias", (self.width,))
        yield TensorSpec(f"{source}.position_embedding.weight", (self.patches, self.width))

    def read(self, source: WeightSource) -> list[torch.Tensor]:
        """Weight, bias and positions."""
        taken = []
        for spec in self.tensors():
            taken.append(self.scope.empty(*spec.shape))
            source.take(spec.name, taken[-1])
        return taken

    def load(self, source: WeightSource) -> None:
        weight, bias, self.position = self.read(source)
        self.site = self.scope.bind(
            "patch_embedding", weights={"weight": weight, "bias": bias},
            dtypes={"x": torch.float32, "position": weight.dtype, "y": weight.dtype},
            dims={"height": self.size, "width": self.size, "patches": self.patches},
        )  # fmt: skip

    def refresh(self, source: WeightSource) -> None:
        weight, bias, position = self.read(source)
        self.site.refresh({"weight": weight, "bias": bias})
        self.position.copy_(position)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.site.run(images, self.position)
        return y
