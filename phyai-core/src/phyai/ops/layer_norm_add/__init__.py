"""Residual addition and layer normalization in one."""

from phyai.ops.layer_norm_add.signature import OP

__all__ = ["OP"]
