"""Attention of queries to keys that are all given with the call."""

from phyai.ops.attention.signature import OP

__all__ = ["OP"]
