"""The residual connection of a gated branch."""

from __future__ import annotations

import torch

from phyai_models.layers.base import Layer
from phyai_models.layers.scope import Scope
from phyai_models.weights import WeightSource


class GatedResidual(Layer):
    """``residual + x * gate`` for ``x [M, width]`` and a gate of one row, or one per group of rows."""

    def __init__(self, scope: Scope, width: int) -> None:
        self.scope = scope
        self.width = width

    def load(self, source: WeightSource) -> None:
        dtypes = dict.fromkeys(("residual", "x", "gate"), self.scope.dtype)
        self.site = self.scope.bind("gated_residual", dtypes=dtypes, dims={"D": self.width})

    def refresh(self, source: WeightSource) -> None:
        pass

    def __call__(self, residual: torch.Tensor, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.site.run(residual, x, gate)
        return y
