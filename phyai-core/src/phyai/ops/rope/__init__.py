"""Rotary position embedding."""

from phyai.ops.rope.signature import OP

__all__ = ["OP"]
