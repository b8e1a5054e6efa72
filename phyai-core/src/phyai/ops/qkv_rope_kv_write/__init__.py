"""Query, key and value projection, rotary embedding and cache write."""

from phyai.ops.qkv_rope_kv_write.signature import OP

__all__ = ["OP"]
