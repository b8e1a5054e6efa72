"""Gated activation: the activated first half times the second half.

::

    gate, up = x.chunk(2, dim=-1)
    y = activation(gate) * up                              # in fp32 (fp64 for fp64), rounded once

with the functions of the op ``activation``.

Source: Shazeer 2020 (GLU variants).
"""

from __future__ import annotations

from phyai.facts import FactKind
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops.activation.signature import ACTIVATION
from phyai.ops.gated_activation.arg_specs import ARG_SPECS

OP = Op(
    name="gated_activation",
    doc=__doc__ or "",
    aliases=("act_and_mul",),
    tensors=(Tensor("x", ("...M", "2*I"), doc="gate, then up"), Tensor("y", ("...M", "I"), "output")),
    dims=(Dim("M", "rows", dynamic=True, minimum=0), Dim("I", "size of one half")),
    attributes=(ACTIVATION, Attr("gated", FactKind.FLAG, True, "always: this is the gated form", values=(True,))),
    arg_specs=ARG_SPECS,
)
