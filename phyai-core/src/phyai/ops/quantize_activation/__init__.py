"""Quantize activations to 8 bits."""

from phyai.ops.quantize_activation.signature import OP

__all__ = ["OP"]
