"""Blocks with their norm in front of them.

Where the norm adds, it and the block are one call, whose decomposition they are: a kernel may then choose in which form
the norm's result travels. A norm that adds nothing is a call of its own, and so is that of a block that is no single
call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from phyai_models.layers.base import Layer
from phyai_models.layers.norm import RMSNorm
from phyai_models.layers.scope import Scope
from phyai_models.weights import WeightSource

if TYPE_CHECKING:
    from phyai.dispatch import Site


class Normed(Layer):
    """A block that may have a ``norm``: it is then called with what that takes, and computes what it gives.

    ``fused`` is the block's call where it is a single one, ``joined`` says whether the norm is part of it.
    """

    scope: Scope
    norm: RMSNorm | None = None
    fused: Site | None = None
    joined: bool = False

    def bind_fused(
        self, op: str, source: WeightSource, *, weights: Mapping[str, Any], facts: Mapping[str, Any], **call: Any
    ) -> None:
        """Bind ``op`` as the block's call, and the norm in front of it."""
        norm = self.norm
        self.joined = norm is not None and norm.add
        if norm is None or not self.joined:
            self.load_norm(source)
            self.fused = self.scope.bind(op, weights=weights, facts=facts, **call)
            return
        norm.weights = norm.read(source)
        self.fused = self.scope.bind(
            f"rms_norm_add_{op}",
            weights={"norm_weight": norm.weights["weight"], **weights},
            facts={"parts.norm.layer": norm.scope.path, **{f"parts.block.{name}": v for name, v in facts.items()}},
            attrs={**norm.attrs, **call.pop("attrs")},
            dtypes={**call.pop("dtypes"), "residual": self.scope.dtype},
            **call,
        )

    def refresh_fused(self, source: WeightSource, weights: Mapping[str, Any]) -> None:
        """Give the block's call other weights, and the norm."""
        assert self.fused is not None
        if self.norm is None or not self.joined:
            self.refresh_norm(source)
            self.fused.refresh(weights)
        else:
            self.fused.refresh({"norm_weight": self.norm.read(source)["weight"], **weights})

    def load_norm(self, source: WeightSource) -> None:
        """Bind the norm, if there is one, as a call of its own."""
        if self.norm is not None:
            self.norm.load(source)

    def refresh_norm(self, source: WeightSource) -> None:
        if self.norm is not None:
            self.norm.refresh(source)

    def inputs(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """What the block's first call takes of ``x``, and of the ``residual`` that the norm adds it to."""
        if self.norm is None:
            return (x,)
        given = (x,) if residual is None else (x, residual)
        return given if self.joined else (self.norm(*given),)
