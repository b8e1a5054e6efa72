"""Normalizations."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from phyai_models.layers.base import Layer
from phyai_models.layers.linear import Linear
from phyai_models.layers.scope import Scope
from phyai_models.weights import TensorSpec, WeightSource


class RMSNorm(Layer):
    """Gemma's RMS normalization: ``x / rms(x) * (1 + weight)`` over the last dimension.

    With ``add`` it is called with ``x`` and a ``residual``: it adds ``x`` to that, in place, and normalizes the sum.
    """

    def __init__(self, scope: Scope, width: int, eps: float, *, add: bool = False) -> None:
        self.scope = scope
        self.width = width
        self.attrs = {"eps": eps, "offset": 1}
        self.add = add

    def tensors(self) -> Iterator[TensorSpec]:
        yield TensorSpec(f"{self.scope.source}.weight", (self.width,))

    def read(self, source: WeightSource) -> dict[str, torch.Tensor]:
        weight = self.scope.empty(self.width, dtype=self.scope.norm_dtype)
        source.take(f"{self.scope.source}.weight", weight)
        return {"weight": weight}

    def refresh(self, source: WeightSource) -> None:
        self.norm.refresh(self.read(source))

    def load(self, source: WeightSource) -> None:
        dtypes = dict.fromkeys(("x", "residual") if self.add else ("x",), self.scope.dtype)
        op = "rms_norm_add" if self.add else "rms_norm"
        self.norm = self.scope.bind(op, weights=self.read(source), attrs=self.attrs, dtypes=dtypes)

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm.run(*tensors)
        return y


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


class LayerNorm(Layer):
    """Layer normalization with weight and bias over the last dimension.

    With ``add`` it is called with ``x`` and a ``residual``: it adds ``x`` to that, in place, and normalizes the sum.
    """

    def __init__(self, scope: Scope, width: int, eps: float, *, add: bool = False) -> None:
        self.scope = scope
        self.width = width
        self.eps = eps
        self.add = add

    def tensors(self) -> Iterator[TensorSpec]:
        for name in ("weight", "bias"):
            yield TensorSpec(f"{self.scope.source}.{name}", (self.width,))

    def read(self, source: WeightSource) -> dict[str, torch.Tensor]:
        weights = {}
        for name in ("weight", "bias"):
            weights[name] = self.scope.empty(self.width, dtype=self.scope.norm_dtype)
            source.take(f"{self.scope.source}.{name}", weights[name])
        return weights

    def refresh(self, source: WeightSource) -> None:
        self.norm.refresh(self.read(source))

    def load(self, source: WeightSource) -> None:
        dtypes = dict.fromkeys(("x", "residual") if self.add else ("x",), self.scope.dtype)
        op = "layer_norm_add" if self.add else "layer_norm"
        self.norm = self.scope.bind(op, weights=self.read(source), attrs={"eps": self.eps}, dtypes=dtypes)

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm.run(*tensors)
        return y
