"""What a residual norm and the block behind it share, as one op: the block's input is the norm's result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phyai.facts import Facts
from phyai.op import Op, Part, Tensor
from phyai.ops.rms_norm.signature import EPS, OFFSET

NORM_WEIGHT = Tensor("norm_weight", ("K",), "weight", fill="near_one")
ATTRIBUTES = (EPS, OFFSET)


def parts_of(block: Op, rows: str) -> tuple[Part, Part]:
    """The norm and the ``block``, of which the composite has all weights, attributes and dimensions by the same names;
    ``rows`` is the dimension that counts the rows. The composite's layer is the block's; a site says the norm's."""
    norm = Part(
        "norm", "rms_norm_add", weights={"weight": "norm_weight"}, attrs={"eps": "eps", "offset": "offset"},
        dims={"M": rows, "D": "K"}, dtypes={"residual": "residual"},
    )  # fmt: skip
    behind = Part(
        "block", block.name, weights={t.name: t.name for t in block.weights},
        attrs={a.name: a.name for a in block.attributes},
        dtypes={t.name: t.name for t in (*block.inputs[1:], *block.outputs)}, parts=block.parts, layer="",
    )  # fmt: skip
    return norm, behind


def compose(sites: Mapping[str, Any], facts: Facts) -> Callable[..., Any]:
    """``run(x, residual, *inputs, out=None, state=None)``: the norm of their sum, then the block."""
    norm, block = sites["norm"], sites["block"]

    def run(x: Any, residual: Any, *inputs: Any, out: Any = None, state: Any = None) -> Any:
        return block.run(norm.run(x, residual), *inputs, out=out)

    return run
