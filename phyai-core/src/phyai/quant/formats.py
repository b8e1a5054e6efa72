"""Quant formats: how a backend declares a packed memory layout for quantized weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from phyai import targets
from phyai.predicates import Predicate

#: The layout in which every weight is realized first; see :class:`phyai.quant.weight.QuantizedWeight`.
PLAIN = "plain"


@attrs.frozen
class QuantFormat:
    """A packed layout, and the schemes and devices that it holds exactly.

    ``name`` is ``<backend>.<format>``; ``layout`` is what kernels list in their ``layouts``.

    ``when`` reads ``quant.*``, ``shape.N``, ``shape.K``, ``dtype.*``, ``device.*`` and ``lib.*`` facts;
    where it holds, ``unpack(pack(weight))`` equals ``weight``. ``pack`` takes a plain
    :class:`phyai.quant.weight.QuantizedWeight` and returns one in this layout; ``unpack`` is its inverse.
    Both are usually ``"module:function"`` strings, imported when first used.
    """

    name: str
    layout: str
    when: Predicate
    pack: str | Callable[..., Any] = attrs.field(repr=False)
    unpack: str | Callable[..., Any] = attrs.field(repr=False)
    doc: str = ""

    @property
    def backend(self) -> str:
        return self.name.split(".", 1)[0]

    def load_pack(self) -> Callable[..., Any]:
        """Import and return the packer."""
        return load(self.pack)

    def load_unpack(self) -> Callable[..., Any]:
        """Import and return the unpacker."""
        return load(self.unpack)


def holding(formats: Iterable[Any], layout: str | None, facts: Mapping[str, Any]) -> QuantFormat | None:
    """The format that packs a weight with such ``facts`` into ``layout``; None where there is none."""
    known = {name: value for name, value in facts.items() if name != "quant.layout"}
    mine = (f for f in formats if isinstance(f, QuantFormat) and f.layout == layout)
    return next((f for f in mine if f.when.holds(known)), None)


def load(target: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function that ``"module:function"`` names; a function comes back unchanged."""
    if not isinstance(target, str):
        return target
    found: Callable[..., Any] = targets.load(target)
    return found
