"""Decoders of what compressed-tensors stores; see :mod:`phyai.quant.importers.ct_storage`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from phyai.errors import CheckpointError
from phyai.quant.realize.bits import unpack_words
from phyai.quant.realize.codes import plain_codes
from phyai.quant.realize.parts import input_parts, scalar, trivial_g_idx
from phyai.quant.scheme import QuantScheme
from phyai.quant.storage import StoredLayer
from phyai.quant.weight import QuantizedWeight

if TYPE_CHECKING:
    import torch


def pack_quantized(layer: StoredLayer, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
    """int32 words of codes plus ``2**(bits - 1)``; zero points packed along the output."""
    import torch

    scheme, (n, k) = layer.described()
    quant, half = scheme.weight, 1 << (scheme.weight.bits - 1)
    per_word = layer.details.get("per_word")
    codes = unpack_words(tensors["weight"], quant.bits, k, per_word)
    weight = plain_codes(codes ^ half, quant.dtype)
    if quant.bits == 8:
        weight = weight.view(torch.int8)
    zero_point = tensors.get("zero_point")
    if zero_point is not None and zero_point.dtype == torch.int32:
        unpacked = unpack_words(zero_point.t().contiguous(), quant.bits, n, per_word)
        zero_point = unpacked.t().to(torch.int16) - half
    return _finish(layer, scheme, weight, tensors, zero_point)


def naive(layer: StoredLayer, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
    """One code per element: int8 (also for narrower integers) or fp8."""
    scheme, _ = layer.described()
    codes = tensors["weight"]
    if scheme.weight.element.kind == "int" and scheme.weight.bits < 8:
        low, high = int(scheme.weight.element.minimum), int(scheme.weight.element.maximum)
        if int(codes.min()) < low or int(codes.max()) > high:
            raise CheckpointError(f"{layer.name}: weight holds codes outside {scheme.weight.dtype}")
    return _finish(layer, scheme, plain_codes(codes, scheme.weight.dtype), tensors, tensors.get("zero_point"))


def fp4_packed(layer: StoredLayer, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
    """Narrow floats: two fp4 codes a byte, or four fp6 codes in three, the first lowest."""
    scheme, _ = layer.described()
    return _finish(layer, scheme, tensors["weight"], tensors, None)


def _finish(
    layer: StoredLayer,
    scheme: QuantScheme,
    codes: torch.Tensor,
    tensors: Mapping[str, torch.Tensor],
    zero_point: torch.Tensor | None,
) -> QuantizedWeight:
    import torch

    n, k = layer.described()[1]
    for role in ("zeros", "input_zeros", "output_zeros"):
        if role in tensors and bool((tensors[role].to(torch.float32) != 0).any()):
            name = layer.tensors[role].name.rpartition(".")[2]
            raise CheckpointError(f"{layer.name}: {name} is not zero although the configuration says symmetric")
    g_idx = tensors.get("g_idx")
    if g_idx is not None:
        g_idx = None if bool((g_idx == -1).all()) else trivial_g_idx(layer.name, scheme.weight, g_idx)
        if g_idx is None:
            scheme = attrs.evolve(scheme, weight=attrs.evolve(scheme.weight, g_idx=False))
    shape = scheme.weight.scale_shape(n, k)
    second = tensors.get("second_scale")
    return QuantizedWeight(
        scheme=scheme,
        shape=(n, k),
        codes=codes,
        scale=tensors["scale"].reshape(shape),
        zero_point=None if zero_point is None else zero_point.reshape(shape).to(torch.int16).contiguous(),
        second_scale=None if second is None else 1.0 / scalar(layer.name, "weight_global_scale", second),
        g_idx=g_idx,
        **input_parts(layer, tensors, divides=True),
    )
