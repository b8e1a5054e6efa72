"""The feed-forward block as a chain of three ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phyai.facts import Facts


def compose(sites: Mapping[str, Any], facts: Facts) -> Callable[..., Any]:
    """``run(x, out=None, state=None)``: gemm, activation, gemm."""
    fc1, activation, fc2 = sites["fc1"], sites["activation"], sites["fc2"]

    def run(x: Any, out: Any = None, state: Any = None) -> Any:
        return fc2.run(activation.run(fc1.run(x)), out=out)

    return run
