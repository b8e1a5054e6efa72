"""Write keys and values into a paged cache."""

from phyai.ops.kv_write.signature import OP

__all__ = ["OP"]
