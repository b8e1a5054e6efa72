"""Group normalization."""

from phyai.ops.group_norm.signature import OP

__all__ = ["OP"]
