"""Convolution (cross-correlation) of channels-first videos over time, height and width.

As the op ``conv2d`` with one axis more. ``stride``, ``padding`` and ``dilation`` hold for height and width, and for
time too unless ``stride_t``, ``padding_t`` or ``dilation_t`` is given.

Source: ``torch.nn.functional.conv3d``; video models treat time apart (Qwen-VL's patches, the WAN VAE's causal padding).
"""

from __future__ import annotations

from phyai.facts import FactKind
from phyai.op import Attr, Dim, Op, Tensor
from phyai.ops import contradictions, fits
from phyai.ops.conv1d.signature import ATTRIBUTES
from phyai.ops.conv3d.arg_specs import ARG_SPECS

OP = Op(
    name="conv3d",
    doc=__doc__ or "",
    tensors=(
        Tensor("x", ("B", "C", "T", "H", "W")),
        Tensor("weight", ("O", "C_group", "kernel_t", "kernel_h", "kernel_w"), "weight"),
        Tensor("bias", ("O",), "weight", optional=True),
        Tensor("y", ("B", "O", "T_out", "H_out", "W_out"), "output"),
    ),
    dims=(
        Dim("B", "samples", dynamic=True, minimum=0),
        Dim("C", "input channels: C_group * groups"),
        Dim("C_group", "input channels of one group"),
        Dim("O", "output channels: a multiple of groups"),
        Dim("T", "frames", dynamic=True),
        Dim("H", "height", dynamic=True),
        Dim("W", "width", dynamic=True),
        Dim("T_out", "output frames", dynamic=True),
        Dim("H_out", "output height", dynamic=True),
        Dim("W_out", "output width", dynamic=True),
        Dim("kernel_t", "kernel frames"),
        Dim("kernel_h", "kernel height"),
        Dim("kernel_w", "kernel width"),
    ),
    attributes=(
        *ATTRIBUTES,
        Attr("stride_t", FactKind.NUMBER, None, "frames between outputs; stride when absent", whole=True, minimum=1),
        Attr(
            "padding_t",
            FactKind.NUMBER,
            None,
            "zero frames added at both ends; padding when absent",
            whole=True,
            minimum=0,
        ),
        Attr(
            "dilation_t",
            FactKind.NUMBER,
            None,
            "frames between the kernel's elements; dilation when absent",
            whole=True,
            minimum=1,
        ),
    ),
    arg_specs=ARG_SPECS,
    fit=fits.convolution,
    contradiction=contradictions.convolution,
)
