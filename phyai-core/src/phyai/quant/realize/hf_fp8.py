"""Decoder of flat FP8 layers; see :mod:`phyai.quant.importers.hf_fp8`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from phyai.quant.realize.codes import plain_codes
from phyai.quant.realize.parts import input_parts
from phyai.quant.storage import StoredLayer
from phyai.quant.weight import QuantizedWeight

if TYPE_CHECKING:
    import torch


def decode(layer: StoredLayer, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
    """The weight as it is stored; the scale multiplies whatever its name."""
    scheme, shape = layer.described()
    return QuantizedWeight(
        scheme=scheme,
        shape=shape,
        codes=plain_codes(tensors["weight"], scheme.weight.dtype),
        scale=tensors["scale"].reshape(scheme.weight.scale_shape(*shape)),
        **input_parts(layer, tensors),
    )
