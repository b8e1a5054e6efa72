"""Matrix product with a weight, as a linear layer computes it.

::

    y = x @ weight.T + bias          # accumulated in fp32 (fp64 for fp64), rounded once to y's dtype

``y`` has ``x``'s dtype unless ``dtype.y`` says otherwise. A quantized site binds, beside or instead of ``weight``, the
tensors that its layout names (codes, scales, zero points); its ``quant.*`` facts describe what they mean.

Source: ``torch.nn.functional.linear``.
"""

from __future__ import annotations

from phyai.op import FLOATS, Dim, Op, Tensor
from phyai.ops.gemm.arg_specs import ARG_SPECS

#: What a quantized weight's codes can be stored as.
CODES = ("fp8_e4m3", "fp8_e5m2", "int8", "uint8", "int32")

OP = Op(
    name="gemm",
    doc=__doc__ or "",
    aliases=("linear", "matmul"),
    tensors=(
        Tensor("x", ("...M", "K"), doc="rows to multiply"),
        Tensor("weight", ("N", "K"), "weight", dtypes=(*FLOATS, *CODES), doc="one output per row"),
        Tensor("bias", ("N",), "weight", optional=True, doc="added to every row"),
        Tensor("y", ("...M", "N"), "output"),
    ),
    dims=(
        Dim("M", "rows of x", dynamic=True, minimum=0),
        Dim("N", "outputs per row"),
        Dim("K", "inputs per row"),
    ),
    arg_specs=ARG_SPECS,
)
