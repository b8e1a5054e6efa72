"""The core's ops: one folder per op, with its ``signature`` and the ``arg_specs`` that real models call it with.

>>> [op.name for op in CORE_OPS if op.composite and op.parts[-1].op == "gemm"]
['mlp', 'gated_mlp']
"""

from __future__ import annotations

from phyai.op import Op
from phyai.ops import (
    activation,
    ada_rms_norm,
    attention,
    attention_paged,
    causal_conv,
    channel_l2_norm,
    conv1d,
    conv2d,
    conv3d,
    embedding,
    expert_steps,
    gated_activation,
    gated_mlp,
    gated_mlp_gated_residual,
    gated_residual,
    gemm,
    gemm_gated_residual,
    group_norm,
    kv_write,
    layer_norm,
    layer_norm_add,
    mlp,
    modulation,
    patch_embedding,
    qkv_rope_kv_write,
    quantize_activation,
    rms_norm,
    rms_norm_add,
    rms_norm_add_gated_mlp,
    rms_norm_add_qkv_rope_kv_write,
    rope,
    transformer_encoder,
)

CORE_OPS: tuple[Op, ...] = (
    gemm.OP,
    attention.OP,
    attention_paged.OP,
    kv_write.OP,
    rms_norm.OP,
    rms_norm_add.OP,
    ada_rms_norm.OP,
    layer_norm.OP,
    layer_norm_add.OP,
    group_norm.OP,
    channel_l2_norm.OP,
    activation.OP,
    gated_activation.OP,
    conv1d.OP,
    conv2d.OP,
    conv3d.OP,
    causal_conv.OP,
    patch_embedding.OP,
    embedding.OP,
    rope.OP,
    modulation.OP,
    gated_residual.OP,
    quantize_activation.OP,
    mlp.OP,
    gated_mlp.OP,
    gemm_gated_residual.OP,
    gated_mlp_gated_residual.OP,
    qkv_rope_kv_write.OP,
    rms_norm_add_gated_mlp.OP,
    rms_norm_add_qkv_rope_kv_write.OP,
    expert_steps.OP,
    transformer_encoder.OP,
)

__all__ = ["CORE_OPS"]
