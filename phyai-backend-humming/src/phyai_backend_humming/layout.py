"""The layout ``humming``: codes as the library takes them before it arranges them for one GPU.

``packed["weight"]`` is int32 ``[N, columns(scheme, K) * bits / 32]``: a stream of bits along K, lowest first, in which
integers of either sign are offset-binary (two's complement with the sign bit inverted) and floats their own bits. K is
filled up to whole groups, with codes that stand for zero. Scales and zero points stay as they are in the plain layout.

>>> import torch
>>> from phyai.quant.realize import quantize_weight
>>> from phyai.quant.scheme import QuantScheme, TensorQuant
>>> weight = quantize_weight(torch.randn(8, 40), QuantScheme(TensorQuant("int4", "group", group_size=32)))
>>> packed = pack(weight)
>>> packed.packed["weight"].shape, torch.equal(unpack(packed).codes, weight.codes)
(torch.Size([8, 8]), True)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
from phyai.errors import CheckpointError
from phyai.quant.formats import PLAIN
from phyai.quant.realize.codes import torch_fp8
from phyai.quant.scheme import TensorQuant
from phyai.quant.weight import QuantizedWeight

from phyai_backend_humming.rows import LAYOUT

if TYPE_CHECKING:
    import torch


def columns(quant: TensorQuant, k: int) -> int:
    """K, filled up to whole groups and to whole words."""
    size = quant.group_size or (quant.block_shape[1] if quant.block_shape else 1)
    return -(-k // math.lcm(size, 8)) * math.lcm(size, 8)


def pack(weight: QuantizedWeight) -> QuantizedWeight:
    """A plain weight in this layout, on the device where it is.

    Raises:
        CheckpointError: the weight is not plain, or its K is not a multiple of 8.
    """
    import torch

    quant, (_, k) = weight.scheme.weight, weight.shape
    if weight.layout != PLAIN:
        raise CheckpointError(f"a weight in layout {weight.layout!r} cannot be packed for Humming; unpack it first")
    if k % 8 or quant.bits not in (4, 8):
        raise CheckpointError(
            f"Humming packs 4- and 8-bit codes of a multiple of 8 inputs, not {quant.dtype} with K={k}"
        )
    data = weight.codes.view(torch.uint8)
    data = torch.nn.functional.pad(data, (0, (columns(quant, k) - k) * quant.bits // 8))
    if _inverted(quant):
        data = data ^ _sign_bits(quant)
    words = data.contiguous().view(torch.int32)
    return attrs.evolve(weight, codes=None, layout=LAYOUT, packed={"weight": words})


def unpack(weight: QuantizedWeight) -> QuantizedWeight:
    """The plain weight that :func:`pack` was given.

    Raises:
        CheckpointError: the weight lies in another layout, or a kernel has arranged it for its GPU since.
    """
    import torch

    if weight.layout != LAYOUT:
        raise CheckpointError(f"a weight in layout {weight.layout!r} is not Humming's; nothing to unpack")
    words = words_of(weight)
    quant, (_, k) = weight.scheme.weight, weight.shape
    data = words.view(torch.uint8)[:, : k * quant.bits // 8]
    data = data ^ _sign_bits(quant) if _inverted(quant) else data
    dtype = torch_fp8(quant.dtype) or (torch.int8 if quant.dtype == "int8" else torch.uint8)
    return attrs.evolve(weight, codes=data.contiguous().view(dtype), layout=PLAIN, packed={})


def words_of(weight: QuantizedWeight) -> torch.Tensor:
    """The packed codes, int32.

    Raises:
        CheckpointError: a kernel has arranged them for its GPU, which cannot be undone.
    """
    words: torch.Tensor | None = weight.packed.get("weight")
    if words is None:
        raise CheckpointError(
            f"the weight [{weight.shape[0]}, {weight.shape[1]}] was arranged for one GPU and one input dtype when a "
            "kernel was prepared, and its packed codes were let go; load the weight again"
        )
    return words


def _inverted(quant: TensorQuant) -> bool:
    """Whether codes are two's complement in the plain layout."""
    return quant.element.kind == "int"


def _sign_bits(quant: TensorQuant) -> int:
    return 0x80 if quant.bits == 8 else 0x88
