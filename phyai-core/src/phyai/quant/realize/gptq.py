"""Decoders of GPTQ and AWQ layers; see :mod:`phyai.quant.importers.gptq` and :mod:`phyai.quant.importers.awq`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from phyai.quant.importers.gptq import with_symmetry
from phyai.quant.realize.bits import unpack_words
from phyai.quant.realize.codes import plain_codes
from phyai.quant.realize.parts import trivial_g_idx
from phyai.quant.storage import StoredLayer
from phyai.quant.weight import QuantizedWeight

if TYPE_CHECKING:
    import torch

#: The order in which AWQ's gemm form packs eight 4-bit outputs into a word, by position in the word.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def gptq(layer: StoredLayer, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
    """The older store: zero points minus one."""
    return _gptq(layer, tensors, offset=1)


def gptq_v2(layer: StoredLayer, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
    """The newer store: zero points as they are."""
    return _gptq(layer, tensors, offset=0)


def _gptq(layer: StoredLayer, tensors: Mapping[str, torch.Tensor], *, offset: int) -> QuantizedWeight:
    scheme, (n, k) = layer.described()
    bits = scheme.weight.bits
    codes = unpack_words(tensors["weight"].t().contiguous(), bits, k)
    words = tensors["zero_point"]
    if offset and 32 % bits == 0:
        # One is added to the packed words, carries included, as the tools do: where a zero point of 0 was
        # stored minus one, the subtraction had borrowed from its neighbour.
        words = words + _ones(bits)
        zeros = unpack_words(words, bits, n)
    else:
        zeros = (unpack_words(words, bits, n) + offset) & ((1 << bits) - 1)
    return _weight(layer, codes, zeros.t(), tensors["scale"].t(), tensors.get("g_idx"))


def awq_gemm(layer: StoredLayer, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
    """Codes and zero points packed along the output, 4-bit ones in :data:`AWQ_ORDER`."""
    import torch

    scheme, (n, _) = layer.described()
    bits = scheme.weight.bits

    def unpack(words: torch.Tensor) -> torch.Tensor:
        codes = unpack_words(words, bits, n)
        if bits != 4:
            return codes
        eights = codes.reshape(*codes.shape[:-1], -1, 8)
        ordered = torch.empty_like(eights)
        ordered[..., list(AWQ_ORDER)] = eights
        return ordered.flatten(-2)

    codes = unpack(tensors["weight"]).t()
    if "zero_point" in tensors:
        zeros = unpack(tensors["zero_point"]).t()
    else:
        zeros = torch.full_like(tensors["scale"].t(), 1 << (bits - 1), dtype=torch.uint8)
    return _weight(layer, codes, zeros, tensors["scale"].t(), None)


def _weight(
    layer: StoredLayer, codes: torch.Tensor, zeros: torch.Tensor, scale: torch.Tensor, g_idx: torch.Tensor | None
) -> QuantizedWeight:
    """Unsigned codes; a symmetric scheme holds them signed, unless the zero points say otherwise."""
    import torch

    said, shape = layer.described()
    half = 1 << (said.weight.bits - 1)
    symmetric = said.weight.symmetric and bool((zeros == half).all())
    scheme = with_symmetry(said, symmetric)
    if symmetric:
        codes = codes.to(torch.int16) - half
    quant = scheme.weight
    if g_idx is not None:
        g_idx = trivial_g_idx(layer.name, quant, g_idx) if quant.granularity == "group" else None
    scheme = attrs.evolve(scheme, weight=attrs.evolve(quant, g_idx=g_idx is not None))
    return QuantizedWeight(
        scheme=scheme,
        shape=shape,
        codes=plain_codes(codes, quant.dtype),
        scale=scale.contiguous(),
        zero_point=None if symmetric else zeros.to(torch.int16).contiguous(),
        g_idx=g_idx,
    )


def _ones(bits: int) -> int:
    """A one in every field of an int32 word."""
    return sum(1 << shift for shift in range(0, 32, bits))
