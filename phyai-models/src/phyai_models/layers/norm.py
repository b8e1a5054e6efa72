"""Normalizations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch

from phyai_models.layers.base import Layer
from phyai_models.layers.linear import Linear
from phyai_models.layers.scope import Scope
from phyai_models.weights import TensorSpec, WeightSource


class _Norm(Layer):
    """A normalization over the last dimension, by vectors of its size.

    With ``add`` it is called with ``x`` and a ``residual``: it adds ``x`` to that, in place, and normalizes the sum.
    ``weights`` are its vectors, once they are loaded.
    """

    op: ClassVar[str]
    vectors: ClassVar[tuple[str, ...]]
    weights: dict[str, torch.Tensor]

    def __init__(self, scope: Scope, width: int, attrs: Mapping[str, float], *, add: bool) -> None:
        self.scope = scope
        self.width = width
        self.attrs = attrs
        self.add = add

    def tensors(self) -> Iterator[TensorSpec]:
        for name in self.vectors:
            yield TensorSpec(f"{self.scope.source}.{name}", (self.width,))

    def read(self, source: WeightSource) -> dict[str, torch.Tensor]:
        weights = {}
        for name in self.vectors:
            weights[name] = self.scope.empty(self.width, dtype=self.scope.norm_dtype)
            source.take(f"{self.scope.source}.{name}", weights[name])
        return weights

    def refresh(self, source: WeightSource) -> None:
        self.norm.refresh(self.read(source))

    def load(self, source: WeightSource) -> None:
        self.weights = self.read(source)
        dtypes = dict.fromkeys(("x", "residual") if self.add else ("x",), self.scope.dtype)
        op = f"{self.op}_add" if self.add else self.op
        self.norm = self.scope.bind(op, weights=self.weights, attrs=self.attrs, dtypes=dtypes)

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm.run(*tensors)
        return y


class RMSNorm(_Norm):
    """Gemma's RMS normalization: ``x / rms(x) * (1 + weight)``."""

    op, vectors = "rms_norm", ("weight",)

    def __init__(self, scope: Scope, width: int, eps: float, *, add: bool = False) -> None:
        super().__init__(scope, width, {"eps": eps, "offset": 1}, add=add)


class LayerNorm(_Norm):
    """Layer normalization with weight and bias."""

    op, vectors = "layer_norm", ("weight", "bias")

    def __init__(self, scope: Scope, width: int, eps: float, *, add: bool = False) -> None:
        super().__init__(scope, width, {"eps": eps}, add=add)


class AdaRMSNorm(Layer):
    """RMS normalization whose scale, shift and gate are a linear function (``dense``) of a condition.

    ``modulate(condition [S, width])`` gives the modulations ``[S, 3 * width]`` of S conditions at once;
    calling it with ``x`` and one of them gives the normalized x and the gate of the residual that follows.
    """

    def __init__(self, scope: Scope, width: int, eps: float) -> None:
        self.scope = scope
        self.width = width
        self.eps = eps
        dense = scope.at("dense", dtype=scope.norm_dtype, rows=None)  # its rows are conditions
        self.dense = Linear(dense, width, 3 * width, bias=True)

    def load(self, source: WeightSource) -> None:
        super().load(source)
        dtypes = {"x": self.scope.dtype, "modulation": self.scope.norm_dtype}
        self.norm = self.scope.bind("ada_rms_norm", attrs={"eps": self.eps}, dtypes=dtypes, dims={"D": self.width})

    def modulate(self, condition: torch.Tensor) -> torch.Tensor:
        return self.dense(condition)

    def __call__(self, x: torch.Tensor, modulation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, gate = self.norm.run(x, modulation)
        return y, gate
