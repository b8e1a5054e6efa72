"""The addition, then the op ``layer_norm``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phyai.facts import Facts


def compose(sites: Mapping[str, Any], facts: Facts) -> Callable[..., Any]:
    """``run(x, residual, out=None, state=None)``: add in place, normalize."""
    norm = sites["norm"]

    def run(x: Any, residual: Any, out: Any = None, state: Any = None) -> Any:
        return norm.run(residual.add_(x), out=out)

    return run
