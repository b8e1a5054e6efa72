"""A residual norm and the query, key and value projection behind it, with rotary embedding and cache write."""

from phyai.ops.rms_norm_add_qkv_rope_kv_write.signature import OP

__all__ = ["OP"]
