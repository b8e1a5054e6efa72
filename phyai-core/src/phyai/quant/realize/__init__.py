"""Realize: the tensors of a checkpoint's layer, in the plain layout, and the numbers they stand for.

This package touches tensors; torch is imported inside its functions.
"""

from phyai.quant.realize.dequantize import dequantize
from phyai.quant.realize.layer import RealizedLayer, realize
from phyai.quant.realize.reading import read_tensor

__all__ = ["RealizedLayer", "dequantize", "read_tensor", "realize"]
