"""Residual addition and root-mean-square normalization in one."""

from phyai.ops.rms_norm_add.signature import OP

__all__ = ["OP"]
