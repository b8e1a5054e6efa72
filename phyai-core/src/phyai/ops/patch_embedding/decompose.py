"""The op ``conv2d``, then the addition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phyai.facts import Facts
from phyai.synthesize import torch_dtype


def compose(sites: Mapping[str, Any], facts: Facts) -> Callable[..., Any]:
    """``run(x, position, out=None, state=None)``: a product of every patch, its position added."""
    patches, dtype = sites["patch_embedding"], torch_dtype(str(facts["dtype.y"]))

    def run(x: Any, position: Any, out: Any = None, state: Any = None) -> Any:
        y = patches.run(x.to(dtype))
        # Contiguous once, here: the sum keeps the strides of y, which may lie channels first.
        tokens = (y.flatten(2).transpose(1, 2) + position).to(dtype).contiguous()
        return tokens if out is None else out.copy_(tokens)

    return run
