"""Convolution over one axis."""

from phyai.ops.conv1d.signature import OP

__all__ = ["OP"]
