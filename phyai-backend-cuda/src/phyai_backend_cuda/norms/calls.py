"""The calls of a norm at a site: of ``rms_norm`` and its kin, or of those that add to a residual first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: A norm of ``x``, of its sum with ``residual`` where there is one, into ``out`` where that is given.
Norm = Callable[[torch.Tensor, "torch.Tensor | None", "torch.Tensor | None"], torch.Tensor]


def run_of(norm: Norm, *, add: bool) -> Callable[..., Any]:
    """What a site calls: with a residual behind ``x`` where the op adds, without otherwise."""

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        return norm(x, None, out)

    def run_add(
        x: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None = None, state: object = None
    ) -> torch.Tensor:
        return norm(x, residual, out)

    return run_add if add else run
