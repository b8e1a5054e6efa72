"""Scale, shift and gate by a condition.

::

    y = (x * (1 + scale) + shift) * gate                   # shift and gate where they are given

in fp32 (fp64 for fp64), rounded once to x's dtype. Row m of x uses row m // (M // R) of scale, shift and gate; R
divides M.

Source: DiT's adaLN-Zero (Peebles & Xie 2023).
"""

from __future__ import annotations

from phyai.op import Dim, Op, Tensor
from phyai.ops import contradictions, fits
from phyai.ops.ada_rms_norm.signature import ROWS
from phyai.ops.modulation.arg_specs import ARG_SPECS

OP = Op(
    name="modulation",
    doc=__doc__ or "",
    aliases=("modulate",),
    tensors=(
        Tensor("x", ("...M", "D")),
        Tensor("scale", ("...R", "D")),
        Tensor("shift", ("...R", "D"), optional=True),
        Tensor("gate", ("...R", "D"), optional=True),
        Tensor("y", ("...M", "D"), "output"),
    ),
    dims=(Dim("M", "rows", dynamic=True, minimum=0), ROWS, Dim("D", "size of a row")),
    arg_specs=ARG_SPECS,
    fit=fits.condition_rows,
    contradiction=contradictions.condition_rows,
)
