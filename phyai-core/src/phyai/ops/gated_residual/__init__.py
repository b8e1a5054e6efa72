"""Residual addition of a gated branch."""

from phyai.ops.gated_residual.signature import OP

__all__ = ["OP"]
