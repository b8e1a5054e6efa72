"""Realize: the tensors of a checkpoint's layer, in the plain layout, and the numbers they stand for.

This package touches tensors; torch is imported inside its functions.
"""

from phyai.quant.realize.dequantize import dequantize
from phyai.quant.realize.layer import RealizedLayer, realize
from phyai.quant.realize.reading import read_tensor
from phyai.quant.realize.rtn import quantize_rows, quantize_weight
from phyai.quant.realize.shaping import FusedPart, fuse, shard

__all__ = [
    "FusedPart", "RealizedLayer", "dequantize", "fuse", "quantize_rows", "quantize_weight", "read_tensor", "realize",
    "shard",
]  # fmt: skip
