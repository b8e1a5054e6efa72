"""A value of a policy file, and where it was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs


@attrs.frozen(eq=False)
class Node:
    """A value and where it starts (from 1). ``value`` is a scalar, a tuple of nodes, or a dict of nodes.

    ``keys`` says where each key of a mapping stands. ``text`` is a scalar as written. ``size`` and ``height`` count
    this node and all below it, aliases expanded.
    """

    value: Any
    line: int
    column: int
    text: str = ""
    keys: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    size: int = 1
    height: int = 1

    @property
    def is_map(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, tuple)

    def plain(self) -> Any:
        """The value as plain Python data."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, tuple):
            return [child.plain() for child in self.value]
        return self.value

    def shown(self, limit: int = 60) -> str:
        """The value as a message quotes it."""
        if self.is_map:
            text = "{" + ", ".join(f"{key}: {child.shown(limit)}" for key, child in list(self.value.items())[:8]) + "}"
        elif self.is_list:
            text = "[" + ", ".join(child.shown(limit) for child in self.value[:8]) + "]"
        else:
            text = self.text.replace("\n", " ") or ("null" if self.value is None else '""')
        return text if len(text) <= limit else text[: limit - 1] + "…"

    def find(self, path: Sequence[str | int]) -> Node:
        """The node at ``path``, or the nearest one above it that is written."""
        node = self
        for step in path:
            in_map = node.is_map and step in node.value
            if not in_map and not (node.is_list and isinstance(step, int) and step < len(node.value)):
                break
            node = node.value[step]
        return node
