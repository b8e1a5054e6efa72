"""What is computed of x, then the op ``gated_residual``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phyai.facts import Facts


def compose(sites: Mapping[str, Any], facts: Facts) -> Callable[..., Any]:
    """``run(x, residual, gate, out=None, state=None)``: the op's parts, which are two, in their order."""
    branch, gated_residual = sites.values()

    def run(x: Any, residual: Any, gate: Any, out: Any = None, state: Any = None) -> Any:
        return gated_residual.run(residual, branch.run(x), gate, out=out)

    return run
