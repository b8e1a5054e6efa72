"""``y = x @ weight.T + bias``."""

from phyai.ops.gemm.signature import OP

__all__ = ["OP"]
