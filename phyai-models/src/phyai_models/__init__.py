"""Models, the layers they are made of, and the loading of their weights.

Importing the package imports nothing heavy; :func:`load_linears` comes when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyai_models.quantized import load_linears as load_linears

__all__ = ["load_linears"]


def __getattr__(name: str) -> Any:
    if name == "load_linears":
        from phyai_models.quantized import load_linears

        return load_linears
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
