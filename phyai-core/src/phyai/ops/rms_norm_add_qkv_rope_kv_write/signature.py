"""A residual norm and the query, key and value projection behind it, with rotary embedding and cache write.

::

    residual += x
    normed = rms_norm(residual, norm_weight, eps, offset)
    q = qkv_rope_kv_write(normed, positions, k_cache, v_cache, slots, weight, bias, cos_sin, style)

Composite: of the ops ``rms_norm_add`` and ``qkv_rope_kv_write``, which is composite too. ``residual`` and the caches
are mutated. In which form the norm's result reaches the projection, in 16 bits or quantized, is left to the kernel.
"""

from __future__ import annotations

from phyai.op import Op, Tensor
from phyai.ops import qkv_rope_kv_write
from phyai.ops.residual_norm import ATTRIBUTES, NORM_WEIGHT, parts_of
from phyai.ops.rms_norm_add_qkv_rope_kv_write.arg_specs import ARG_SPECS

BLOCK = qkv_rope_kv_write.OP

OP = Op(
    name="rms_norm_add_qkv_rope_kv_write",
    doc=__doc__ or "",
    tensors=(
        BLOCK.inputs[0],
        Tensor("residual", ("T", "K"), mutated=True, doc="becomes residual + x"),
        *BLOCK.inputs[1:],
        NORM_WEIGHT,
        *BLOCK.weights,
        *BLOCK.outputs,
    ),
    dims=BLOCK.dims,
    attributes=(*ATTRIBUTES, *BLOCK.attributes),
    tolerance=BLOCK.tolerance,
    parts=parts_of(BLOCK, "T"),
    compose="phyai.ops.residual_norm:compose",
    arg_specs=ARG_SPECS,
    fit=BLOCK.fit,
    contradiction=BLOCK.contradiction,
)
