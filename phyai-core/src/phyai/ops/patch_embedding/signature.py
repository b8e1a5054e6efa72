"""Patches of images as tokens: every patch times a matrix, and its learned position added.

::

    y = conv2d(x, weight, bias, stride=patch)              # x in the weight's dtype, y in the output's
    y = y.flatten(2).transpose(1, 2) + position            # patches row by row

Rows and columns of an image beyond its last whole patch are not read. Composite: of the op ``conv2d``, and the
addition. A fused kernel may add the position before the product is rounded.

Source: Dosovitskiy et al. 2021, equation 1; SigLIP's embeddings.
"""

from __future__ import annotations

from phyai.op import DEFAULT_TOLERANCE, Dim, Op, Part, Tensor, Tolerance
from phyai.ops import contradictions, fits
from phyai.ops.patch_embedding.arg_specs import ARG_SPECS

#: The product may be rounded before the addition, in which it cancels.
TOLERANCE = {
    **DEFAULT_TOLERANCE,
    "fp16": Tolerance(rtol=1e-2, atol=4e-3, relative_norm=2e-3),
    "bf16": Tolerance(rtol=4e-2, atol=3e-2, relative_norm=8e-3),
}

OP = Op(
    name="patch_embedding",
    doc=__doc__ or "",
    aliases=("patch_embed",),
    tensors=(
        Tensor("x", ("B", "C", "H", "W"), doc="images; rounded to the weight's dtype"),
        Tensor("position", ("P", "O"), doc="of every patch of an image"),
        Tensor("weight", ("O", "C", "patch", "patch"), "weight"),
        Tensor("bias", ("O",), "weight", optional=True),
        Tensor("y", ("B", "P", "O"), "output"),
    ),
    dims=(
        Dim("B", "images", dynamic=True, minimum=0),
        Dim("C", "channels"),
        Dim("H", "height: a patch or more", dynamic=True),
        Dim("W", "width: a patch or more", dynamic=True),
        Dim("P", "patches of an image: (H // patch) * (W // patch)", dynamic=True),
        Dim("O", "size of a token"),
        Dim("patch", "height and width of a patch"),
    ),
    tolerance=TOLERANCE,
    parts=(
        Part(
            "patch_embedding", "conv2d", weights={"weight": "weight", "bias": "bias"},
            attrs={"stride": lambda d: d["patch"]},
            dims={
                "C_group": "C", "kernel_h": "patch", "kernel_w": "patch",
                "H_out": lambda d: d["H"] // d["patch"], "W_out": lambda d: d["W"] // d["patch"],
            },
            dtypes={"x": "weight", "y": "y"},
        ),
    ),
    compose="phyai.ops.patch_embedding.decompose:compose",
    arg_specs=ARG_SPECS,
    fit=fits.patch_embedding,
    contradiction=contradictions.patch_embedding,
)  # fmt: skip
