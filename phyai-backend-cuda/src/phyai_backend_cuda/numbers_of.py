"""Numbers among the facts of a call."""

from __future__ import annotations

from collections.abc import Mapping

from phyai.facts import FactValue


def number(facts: Mapping[str, FactValue], name: str, default: float | None = None) -> float:
    """The number that ``name`` has; ``default`` where it is absent.

    >>> number({"attrs.eps": 1e-6}, "attrs.eps"), number({}, "attrs.offset", 0)
    (1e-06, 0)
    """
    value = facts.get(name, default)
    assert isinstance(value, int | float), f"{name}={value!r} is no number"
    return value


def whole(facts: Mapping[str, FactValue], name: str, default: int | None = None) -> int:
    """The same of a size."""
    return int(number(facts, name, default))
