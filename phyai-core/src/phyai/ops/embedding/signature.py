"""Rows of an embedding table by index, where the table may be one shard of a larger one.

::

    inside = (ids >= start) & (ids < end)                  # start is 0 and end is start + V unless given
    y = where(inside, weight[ids - start], 0) * scale      # the factor where it is given; rounded once

``weight`` holds the rows ``start`` to ``start + V`` of the whole table.

Source: ``torch.nn.functional.embedding``; Gemma scales by ``sqrt(D)``.
"""

from __future__ import annotations

from phyai.facts import FactKind
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops import fits
from phyai.ops.embedding.arg_specs import ARG_SPECS

OP = Op(
    name="embedding",
    doc=__doc__ or "",
    tensors=(
        Tensor("ids", ("...M",), dtypes=("int64", "int32"), fill="ids"),
        Tensor("weight", ("V", "D"), "weight"),
        Tensor("y", ("...M", "D"), "output"),
    ),
    dims=(
        Dim("M", "indices", dynamic=True, minimum=0),
        Dim("V", "rows of this table"),
        Dim("D", "size of a row"),
    ),
    attributes=(
        Attr("start", FactKind.NUMBER, None, "first index of this shard", whole=True, minimum=0),
        Attr("end", FactKind.NUMBER, None, "first index after this shard", whole=True, minimum=0),
        Attr("scale", FactKind.NUMBER, None, "factor of every row"),
    ),
    arg_specs=ARG_SPECS,
    fit=fits.embedding,
    synthesize="phyai.ops.embedding.inputs:fill",
)
