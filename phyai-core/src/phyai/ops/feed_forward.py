"""What ``mlp`` and ``gated_mlp`` share: two products with an activation between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phyai.facts import Facts
from phyai.op import DEFAULT_TOLERANCE, Dim, Tolerance

DIMS = (
    Dim("M", "rows", dynamic=True, minimum=0),
    Dim("K", "inputs per row"),
    Dim("I", "intermediate size"),
    Dim("N", "outputs per row"),
)
#: What lies between may be rounded twice to the input's dtype, and small outputs be sums of large terms.
TOLERANCE = {
    **DEFAULT_TOLERANCE,
    "fp16": Tolerance(rtol=2e-2, atol=1e-2, relative_norm=5e-3),
    "bf16": Tolerance(rtol=8e-2, atol=6e-2, relative_norm=2e-2),
}


def compose(sites: Mapping[str, Any], facts: Facts) -> Callable[..., Any]:
    """``run(x, out=None, state=None)``: gemm, activation, gemm, which are the op's parts in this order."""
    first, activation, second = sites.values()

    def run(x: Any, out: Any = None, state: Any = None) -> Any:
        return second.run(activation.run(first.run(x)), out=out)

    return run
