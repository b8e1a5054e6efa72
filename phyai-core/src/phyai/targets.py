"""Functions and classes that declarations name as ``"module:name"``, so that declaring imports nothing.

>>> load("math:hypot")(3, 4)
5.0
"""

from __future__ import annotations

import importlib
from typing import Any


def load(target: str) -> Any:
    """Import and return what ``"module:name"`` names.

    Raises:
        ImportError: there is no such module, or one that it needs is missing.
        AttributeError: the module has nothing of that name.
    """
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
