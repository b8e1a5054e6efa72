"""Depthwise causal convolution with a carried state."""

from phyai.ops.causal_conv.signature import OP

__all__ = ["OP"]
