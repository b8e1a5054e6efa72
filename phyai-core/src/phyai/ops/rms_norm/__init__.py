"""Root-mean-square normalization."""

from phyai.ops.rms_norm.signature import OP

__all__ = ["OP"]
