"""Decoders of what ModelOpt stores; see :mod:`phyai.quant.importers.modelopt_storage`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from phyai.quant.realize.codes import plain_codes
from phyai.quant.realize.parts import input_parts, scalar
from phyai.quant.storage import StoredLayer
from phyai.quant.weight import QuantizedWeight

if TYPE_CHECKING:
    import torch


def codes(layer: StoredLayer, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
    """Codes that lie as in the plain layout: fp8, int8, and fp4 with the low nibble first."""
    return _weight(layer, tensors, tensors["weight"].contiguous())


def int4(layer: StoredLayer, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
    """Pairs of output rows in one byte, the even row in the low nibble."""
    import torch

    _, shape = layer.described()
    pairs = tensors["weight"]
    rows = torch.stack([pairs & 0xF, pairs >> 4], dim=1).reshape(shape)
    return _weight(layer, tensors, plain_codes(rows, "int4"))


def _weight(layer: StoredLayer, tensors: Mapping[str, torch.Tensor], plain: torch.Tensor) -> QuantizedWeight:
    scheme, shape = layer.described()
    second, pre = tensors.get("second_scale"), tensors.get("pre_scale")
    return QuantizedWeight(
        scheme=scheme,
        shape=shape,
        codes=plain,
        scale=tensors["scale"].reshape(scheme.weight.scale_shape(*shape)),
        second_scale=None if second is None else scalar(layer.name, "weight_scale_2", second),
        pre_scale=None if pre is None else pre.reshape(-1),
        **input_parts(layer, tensors),
    )
