"""Decoders of torchao's tensor classes; see :mod:`phyai.quant.importers.torchao_tensors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from phyai.errors import CheckpointError
from phyai.quant.realize.codes import plain_codes
from phyai.quant.realize.parts import input_parts, scalar
from phyai.quant.storage import StoredLayer
from phyai.quant.weight import QuantizedWeight

if TYPE_CHECKING:
    import torch


def integers(layer: StoredLayer, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
    """int8 codes, also of narrower integers; zero points that are all zero mean a symmetric weight."""
    import torch

    scheme, shape = layer.described()
    codes = tensors["weight"]
    info = scheme.weight.element
    if int(codes.min()) < info.minimum or int(codes.max()) > info.maximum:
        raise CheckpointError(f"{layer.name}: _weight_qdata holds codes outside {info.name}")
    zero = tensors.get("zero_point")
    if zero is not None and not bool((zero != 0).any()):
        zero = None
    if zero is not None:
        kind, dtype = ("float", torch.float32) if zero.is_floating_point() else ("int", torch.int16)
        zero = zero.to(dtype)
        scheme = attrs.evolve(scheme, weight=attrs.evolve(scheme.weight, zero_point=kind))
    pre = tensors.get("pre_scale")
    return QuantizedWeight(
        scheme=scheme,
        shape=shape,
        codes=plain_codes(codes, scheme.weight.dtype),
        scale=tensors["scale"].reshape(scheme.weight.scale_shape(*shape)),
        zero_point=zero,
        pre_scale=None if pre is None else pre.reshape(-1),
        **input_parts(layer, tensors),
    )


def floats(layer: StoredLayer, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
    """fp8 and packed fp4 codes; scales row by row, or in cuBLAS's blocked order."""
    scheme, shape = layer.described()
    rows, columns = scheme.weight.scale_shape(*shape)
    scale, second = tensors["scale"], tensors.get("second_scale")
    if scale.numel() != rows * columns or layer.details.get("swizzled"):
        scale = from_blocked(scale, rows, columns)
    if scheme.weight.second_scale and second is None:
        scheme = attrs.evolve(scheme, weight=attrs.evolve(scheme.weight, second_scale=False))
    return QuantizedWeight(
        scheme=scheme,
        shape=shape,
        codes=tensors["weight"].contiguous(),
        scale=scale.reshape(rows, columns).contiguous(),
        second_scale=None if second is None else scalar(layer.name, "_weight_per_tensor_scale", second),
        **input_parts(layer, tensors),
    )


def from_blocked(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Scales out of cuBLAS's order of blocks of 128 rows and 4 columns, its padding cut off: ``[rows, columns]``.

    Inside a block, row ``32 * i + j`` and column ``c`` lie at ``16 * j + 4 * i + c``.
    """
    down, across = -(-rows // 128), -(-columns // 4)
    tiles = scale.reshape(down, across, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(down * 128, across * 4)[:rows, :columns]
