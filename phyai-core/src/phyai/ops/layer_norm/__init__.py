"""Layer normalization."""

from phyai.ops.layer_norm.signature import OP

__all__ = ["OP"]
