"""``example.gated_activation.in_place``: ``activation(gate) * up`` without a tensor in between.

``torch.mul(silu(gate), up)`` allocates a tensor as large as the result, writes it, and reads it back. Here the
activation is written where the result goes and multiplied in place. On a CPU, where a large tensor's memory is mapped
afresh page by page, that is most of the time of a large call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

aten = torch.ops.aten


def _silu(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return aten.silu.out(x, out=out)  # type: ignore[no-any-return]


def _gelu(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return aten.gelu.out(x, approximate="none", out=out)  # type: ignore[no-any-return]


def _gelu_tanh(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return aten.gelu.out(x, approximate="tanh", out=out)  # type: ignore[no-any-return]


#: ``function(x, out)`` for every value of the attribute ``activation``.
FUNCTIONS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    """``run(x)`` for ``x [...M, 2 I]`` gives ``[...M, I]``."""
    function = FUNCTIONS[str(facts.get("attrs.activation", "silu"))]
    at_once = int(params.get("rows", 0))

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        if out is None:
            out = torch.empty(gate.shape, dtype=x.dtype)
        if at_once and out.dim() == 2:
            for rows in range(0, len(out), at_once):
                piece = slice(rows, rows + at_once)
                function(gate[piece], out[piece]).mul_(up[piece])
            return out
        return function(gate, out).mul_(up)

    return Prepared(run)
