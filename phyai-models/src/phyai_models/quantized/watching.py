"""Seeing the inputs of an engine's linear layers while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

from phyai.dispatch import Dispatcher
from phyai.quant.names import FUSED

#: Parts of composite ops that are products with a matrix, and the shards that these are made of.
_PARTS = {**FUSED, "qkv": FUSED["qkv_proj"], "gate_up": FUSED["gate_up_proj"], "down": ("down_proj",)}


@contextlib.contextmanager
def watched(dispatcher: Dispatcher, paths: Collection[str], watch: Callable[[str, Any], None]) -> Iterator[None]:
    """Within it, ``watch(path, x)`` is called before every product with a matrix in ``paths``.

    Products inside a fused kernel are not seen. Calls must have been decided before.
    """
    known = frozenset(paths)
    before = [(site, site.run) for site in dispatcher.sites if site.op.name == "gemm"]
    try:
        for site, run in before:
            site.run = _telling(run, shards(str(site.static.get("layer", "")), known), watch)
        yield
    finally:
        for site, run in before:
            site.run = run


def shards(layer: str, known: frozenset[str]) -> tuple[str, ...]:
    """The matrices that a product at ``layer`` is made of.

    >>> shards("expert.layers.0.mlp.gate_up", frozenset({"expert.layers.0.mlp.up_proj"}))
    ('expert.layers.0.mlp.up_proj',)
    """
    parent, _, last = layer.rpartition(".")
    names = (layer, *(f"{parent}.{shard}" for shard in _PARTS.get(last, ())))
    return tuple(name for name in names if name in known)


def _telling(run: Callable[..., Any], names: tuple[str, ...], watch: Callable[[str, Any], None]) -> Callable[..., Any]:
    def told(*inputs: Any, out: Any = None, state: Any = None) -> Any:
        for name in names:
            watch(name, inputs[0])
        return run(*inputs, out=out, state=state)

    return told
