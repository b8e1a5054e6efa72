"""Convolution over time, height and width."""

from phyai.ops.conv3d.signature import OP

__all__ = ["OP"]
