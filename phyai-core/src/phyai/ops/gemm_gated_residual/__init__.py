"""A product that is gated and added to a residual."""

from phyai.ops.gemm_gated_residual.signature import OP

__all__ = ["OP"]
