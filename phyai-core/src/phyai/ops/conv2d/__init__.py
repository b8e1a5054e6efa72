"""Convolution over two axes."""

from phyai.ops.conv2d.signature import OP

__all__ = ["OP"]
