"""Attention of queries to a paged cache of keys and values."""

from phyai.ops.attention_paged.signature import OP

__all__ = ["OP"]
