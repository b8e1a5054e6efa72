"""Rows of a table by index."""

from phyai.ops.embedding.signature import OP

__all__ = ["OP"]
