"""Normalization of every position's channels to a fixed length."""

from phyai.ops.channel_l2_norm.signature import OP

__all__ = ["OP"]
