"""Pointwise activation.

::

    silu:       y = x * sigmoid(x)
    gelu:       y = x * (1 + erf(x / sqrt(2))) / 2
    gelu_tanh:  y = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2

in fp32 (fp64 for fp64), rounded once.

Source: ``torch.nn.functional.silu`` and ``gelu`` (``approximate="none"`` and ``"tanh"``).
"""

from __future__ import annotations

from phyai.facts import FactKind
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops.activation.arg_specs import ARG_SPECS

ACTIVATION = Attr("activation", FactKind.NAME, "silu", "the function", values=("silu", "gelu", "gelu_tanh"))

OP = Op(
    name="activation",
    doc=__doc__ or "",
    tensors=(Tensor("x", ("...M", "D")), Tensor("y", ("...M", "D"), "output")),
    dims=(Dim("M", "rows", dynamic=True, minimum=0), Dim("D", "size of a row")),
    attributes=(ACTIVATION, Attr("gated", FactKind.FLAG, False, "gated_activation is the gated form", values=(False,))),
    arg_specs=ARG_SPECS,
)
