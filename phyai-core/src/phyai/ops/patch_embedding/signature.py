"""Patches of images as tokens: every patch times a matrix, and its learned position added.

::

    y = conv2d(x, weight, bias, stride=patch)              # x is rounded to y's dtype first
    y = y.flatten(2).transpose(1, 2) + position            # patches row by row

Rows and columns of an image beyond its last whole patch are not read. Composite: of the op ``conv2d``, and the
addition. A fused kernel may add the position before the product is rounded.

Source: Dosovitskiy et al. 2021, equation 1; SigLIP's embeddings.
"""

from __future__ import annotations

from phyai.op import SUM_TOLERANCE, Dim, Op, Part, Tensor
from phyai.ops import contradictions, fits
from phyai.ops.patch_embedding.arg_specs import ARG_SPECS

OP = Op(
    name="patch_embedding",
    doc=__doc__ or "",
    aliases=("patch_embed",),
    tensors=(
        Tensor("x", ("B", "C", "height", "width"), doc="images; rounded to y's dtype"),
        Tensor("position", ("patches", "O"), doc="of every patch of an image"),
        Tensor("weight", ("O", "C", "patch", "patch"), "weight"),
        Tensor("bias", ("O",), "weight", optional=True),
        Tensor("y", ("B", "patches", "O"), "output"),
    ),
    dims=(
        Dim("B", "images", dynamic=True, minimum=0),
        Dim("C", "channels"),
        Dim("height", "of an image: a patch or more"),
        Dim("width", "of an image: a patch or more"),
        Dim("patches", "of an image: (height // patch) * (width // patch)"),
        Dim("O", "size of a token"),
        Dim("patch", "height and width of a patch"),
    ),
    tolerance=SUM_TOLERANCE,  # the product may be rounded before the addition, in which it cancels
    parts=(
        Part(
            "patch_embedding", "conv2d", weights={"weight": "weight", "bias": "bias"},
            attrs={"stride": lambda d: d["patch"]},
            dims={
                "C_group": "C", "H": "height", "W": "width", "kernel_h": "patch", "kernel_w": "patch",
                "H_out": lambda d: d["height"] // d["patch"], "W_out": lambda d: d["width"] // d["patch"],
            },
            dtypes={"x": "y", "y": "y"},
        ),
    ),
    compose="phyai.ops.patch_embedding.decompose:compose",
    arg_specs=ARG_SPECS,
    fit=fits.patch_embedding,
    contradiction=contradictions.patch_embedding,
)  # fmt: skip
