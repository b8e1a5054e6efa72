"""Residual addition of a gated branch.

::

    y = residual + x * gate                                # row m uses row m // (M // R) of the gate

in fp32 (fp64 for fp64), rounded once to the residual's dtype. R divides M.

Source: π0.5's action expert (openpi's ``_gated_residual``); DiT blocks.
"""

from __future__ import annotations

from phyai.op import Dim, Op, Tensor
from phyai.ops import contradictions, fits
from phyai.ops.ada_rms_norm.signature import ROWS
from phyai.ops.gated_residual.arg_specs import ARG_SPECS

OP = Op(
    name="gated_residual",
    doc=__doc__ or "",
    tensors=(
        Tensor("residual", ("...M", "D")),
        Tensor("x", ("...M", "D"), doc="what the branch computed"),
        Tensor("gate", ("...R", "D")),
        Tensor("y", ("...M", "D"), "output"),
    ),
    dims=(Dim("M", "rows", dynamic=True, minimum=0), ROWS, Dim("D", "size of a row")),
    arg_specs=ARG_SPECS,
    fit=fits.condition_rows,
    contradiction=contradictions.condition_rows,
)
