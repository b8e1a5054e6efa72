"""Convolution (cross-correlation) of channels-first tensors over one axis.

::

    y[b, o, l] = bias[o] + sum(                            # in fp32 (fp64 for fp64), rounded once
        weight[o, c, i] * x_padded[b, g * C_group + c, l * stride + i * dilation]
        for c in range(C_group) for i in range(kernel))    # g = o // (O // groups), zeros as padding

Source: ``torch.nn.functional.conv1d``.
"""

from __future__ import annotations

from phyai.facts import FactKind
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops import contradictions, fits
from phyai.ops.conv1d.arg_specs import ARG_SPECS

#: Attributes that every convolution has; each holds for all axes.
ATTRIBUTES = (
    Attr("stride", FactKind.NUMBER, 1, "positions between outputs", whole=True, minimum=1),
    Attr("padding", FactKind.NUMBER, 0, "zeros added at both ends", whole=True, minimum=0),
    Attr("dilation", FactKind.NUMBER, 1, "positions between the kernel's elements", whole=True, minimum=1),
    Attr("groups", FactKind.NUMBER, 1, "groups of channels that do not mix", whole=True, minimum=1),
)

OP = Op(
    name="conv1d",
    doc=__doc__ or "",
    tensors=(
        Tensor("x", ("B", "C", "L")),
        Tensor("weight", ("O", "C_group", "kernel"), "weight"),
        Tensor("bias", ("O",), "weight", optional=True),
        Tensor("y", ("B", "O", "L_out"), "output"),
    ),
    dims=(
        Dim("B", "samples", dynamic=True, minimum=0),
        Dim("C", "input channels: C_group * groups"),
        Dim("C_group", "input channels of one group"),
        Dim("O", "output channels: a multiple of groups"),
        Dim("L", "length", dynamic=True),
        Dim("L_out", "output length", dynamic=True),
        Dim("kernel", "kernel length"),
    ),
    attributes=ATTRIBUTES,
    arg_specs=ARG_SPECS,
    fit=fits.convolution,
    contradiction=contradictions.convolution,
)
