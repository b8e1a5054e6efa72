"""Convolution (cross-correlation) of channels-first images.

::

    y[b, o, h, w] = bias[o] + sum(                         # in fp32 (fp64 for fp64), rounded once
        weight[o, c, i, j] * x_padded[b, g * C_group + c, h * stride + i * dilation, w * stride + j * dilation]
        for c in range(C_group) for i in range(kernel_h) for j in range(kernel_w))

with g = o // (O // groups) and zeros as padding.

Source: ``torch.nn.functional.conv2d``.
"""

from __future__ import annotations

from collections.abc import Mapping

from phyai.facts import FactKind, FactSpec, FactValue
from phyai.op import Dim, Op, Tensor
from phyai.ops import contradictions, fits
from phyai.ops.conv1d.signature import ATTRIBUTES
from phyai.ops.conv2d.arg_specs import ARG_SPECS

PATCHES = FactSpec("attrs.patches", FactKind.FLAG, "kernels lie side by side: a product of disjoint patches of x")


def derive(facts: Mapping[str, FactValue]) -> Mapping[str, FactValue]:
    """``attrs.patches``: as far as ``stride`` from kernel to kernel, one group, and neither padding nor dilation.

    >>> derive({"shape.kernel_h": 14, "shape.kernel_w": 14, "attrs.stride": 14})
    {'attrs.patches': True}
    """
    if "shape.kernel_h" not in facts or "shape.kernel_w" not in facts:
        return {}
    steps = (facts["shape.kernel_h"], facts["shape.kernel_w"], facts.get("attrs.stride", 1))
    usual = {"attrs.padding": 0, "attrs.dilation": 1, "attrs.groups": 1}
    plain = all(facts.get(name, value) == value for name, value in usual.items())
    return {"attrs.patches": plain and len(set(steps)) == 1}


OP = Op(
    name="conv2d",
    doc=__doc__ or "",
    tensors=(
        Tensor("x", ("B", "C", "H", "W")),
        Tensor("weight", ("O", "C_group", "kernel_h", "kernel_w"), "weight"),
        Tensor("bias", ("O",), "weight", optional=True),
        Tensor("y", ("B", "O", "H_out", "W_out"), "output"),
    ),
    dims=(
        Dim("B", "samples", dynamic=True, minimum=0),
        Dim("C", "input channels: C_group * groups"),
        Dim("C_group", "input channels of one group"),
        Dim("O", "output channels: a multiple of groups"),
        Dim("H", "height", dynamic=True),
        Dim("W", "width", dynamic=True),
        Dim("H_out", "output height", dynamic=True),
        Dim("W_out", "output width", dynamic=True),
        Dim("kernel_h", "kernel height"),
        Dim("kernel_w", "kernel width"),
    ),
    attributes=ATTRIBUTES,
    extra_facts=(PATCHES,),
    derive=derive,
    arg_specs=ARG_SPECS,
    fit=fits.convolution,
    contradiction=contradictions.convolution,
)
