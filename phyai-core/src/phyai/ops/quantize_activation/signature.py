"""Symmetric quantization of activations to 8 bits.

::

    top = {"int8": 127, "fp8_e4m3": 448, "fp8_e5m2": 57344}[format]
    amax = abs(x).amax(over all elements | over each row | over every group_size elements of a row)
    scales = amax / top                                    # fp32; 1 where that is 0; or the given static scale
    codes = (x / scales).clamp(-top, top)                  # then rounded to the nearest code, ties to even

so that ``x`` is about ``codes * scales``. ``granularity`` is ``tensor`` (scales ``[1]``), ``token`` (scales
``[...M, 1]``) or ``group`` (scales ``[...M, K / group_size]``; group_size divides K). A static ``scale`` goes with
``tensor`` only, and is returned as it was given.

Sources: ``torch.finfo`` of the float8 dtypes (OCP 8-bit floating point); LLM.int8 (Dettmers et al. 2022) for one scale
per token.
"""

from __future__ import annotations

from collections.abc import Mapping

from phyai.facts import FactKind, FactValue
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops import fits
from phyai.ops.quantize_activation.arg_specs import ARG_SPECS

FORMATS = ("int8", "fp8_e4m3", "fp8_e5m2")


def contradiction(facts: Mapping[str, FactValue]) -> str | None:
    """Groups that would run from one row into the next.

    >>> contradiction({"attrs.granularity": "group", "attrs.group_size": 64, "shape.K": 100})
    'group_size=64 does not divide K=100: quantize_activation cuts every row into whole groups'
    """
    size, k = facts.get("attrs.group_size"), facts.get("shape.K")
    if facts.get("attrs.granularity") != "group" or not isinstance(size, int | float) or not isinstance(k, int):
        return None
    if k % size == 0:
        return None
    return f"group_size={size} does not divide K={k}: quantize_activation cuts every row into whole groups"


OP = Op(
    name="quantize_activation",
    doc=__doc__ or "",
    aliases=("quantize",),
    tensors=(
        Tensor("x", ("...M", "K")),
        Tensor("scale", ("1",), dtypes=("fp32",), optional=True, fill="scale", doc="static scale of the whole tensor"),
        Tensor("codes", ("...M", "K"), "output", dtypes=FORMATS),
        Tensor("scales", ("...S", "G"), "output", dtypes=("fp32",)),
    ),
    dims=(
        Dim("M", "rows", dynamic=True, minimum=0),
        Dim("K", "size of a row"),
        Dim("S", "rows of the scales: 1 or M", dynamic=True, minimum=0),
        Dim("G", "scales per row: K / group_size, or 1"),
    ),
    attributes=(
        Attr("format", FactKind.NAME, "fp8_e4m3", "element type of the codes", values=FORMATS),
        Attr("granularity", FactKind.NAME, "token", "what shares a scale", values=("tensor", "token", "group")),
        Attr("group_size", FactKind.NUMBER, None, "elements per scale, with group", whole=True, minimum=1),
    ),
    arg_specs=ARG_SPECS,
    fit=fits.quantize_activation,
    contradiction=contradiction,
)
