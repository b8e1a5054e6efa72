"""Root-mean-square normalization whose scale and shift come from a condition."""

from phyai.ops.ada_rms_norm.signature import OP

__all__ = ["OP"]
