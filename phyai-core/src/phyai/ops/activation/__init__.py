"""Pointwise activations."""

from phyai.ops.activation.signature import OP

__all__ = ["OP"]
