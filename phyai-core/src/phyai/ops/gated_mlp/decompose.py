"""The gated feed-forward block as a chain of three ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phyai.facts import Facts


def compose(sites: Mapping[str, Any], facts: Facts) -> Callable[..., Any]:
    """``run(x, out=None, state=None)``: gemm, gated activation, gemm."""
    gate_up, activation, down = sites["gate_up"], sites["activation"], sites["down"]

    def run(x: Any, out: Any = None, state: Any = None) -> Any:
        return down.run(activation.run(gate_up.run(x)), out=out)

    return run
