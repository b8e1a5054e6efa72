"""The layout ``skinny``: quantized weights as ``csrc/skinny.cu`` multiplies them (see :mod:`.order`).

``packed["codes"]`` holds the codes, rows filled up to whole 64; signed 4-bit ones with their sign bit inverted. Scales
and zero points stay as they are in the plain layout.

>>> import torch
>>> from phyai.quant.realize import quantize_weight
>>> from phyai.quant.scheme import QuantScheme, TensorQuant
>>> weight = quantize_weight(torch.randn(8, 128), QuantScheme(TensorQuant("int4", "group", group_size=32)))
>>> packed = pack(weight)
>>> packed.packed["codes"].shape, torch.equal(unpack(packed).codes, weight.codes)
(torch.Size([4096]), True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from phyai.errors import CheckpointError
from phyai.quant.formats import PLAIN
from phyai.quant.realize.bits import pack_bits, unpack_bits
from phyai.quant.scheme import TensorQuant
from phyai.quant.weight import QuantizedWeight

from phyai_backend_cuda.records.skinny import LAYOUT
from phyai_backend_cuda.skinny import order

if TYPE_CHECKING:
    import torch

_SIGN = 8  # of a 4-bit code


def pack(weight: QuantizedWeight) -> QuantizedWeight:
    """A plain weight in this layout.

    Raises:
        CheckpointError: the weight is not plain, of other codes than e4m3 or 4-bit integers, or K is no multiple of 64.
    """
    import torch

    quant, (_, k) = weight.scheme.weight, weight.shape
    if weight.layout != PLAIN or quant.dtype not in ("fp8_e4m3", "int4", "uint4") or k % 64:
        raise CheckpointError(
            f"{quant.dtype} codes with K={k} in layout {weight.layout!r} cannot be packed: plain fp8_e4m3, int4 or "
            "uint4 with a multiple of 64 inputs can"
        )
    if quant.bits == 8:
        packed = order.pack_fp8(weight.codes.view(torch.uint8))
    else:
        codes = unpack_bits(weight.codes, 4, k)
        packed = order.pack_int4(codes ^ _inverted(quant), _SIGN)
    return attrs.evolve(weight, codes=None, layout=LAYOUT, packed={"codes": packed})


def unpack(weight: QuantizedWeight) -> QuantizedWeight:
    """The plain weight that :func:`pack` was given.

    Raises:
        CheckpointError: the weight lies in another layout.
    """
    import torch

    if weight.layout != LAYOUT:
        raise CheckpointError(f"a weight in layout {weight.layout!r} does not lie as {LAYOUT!r}; nothing to unpack")
    quant, packed = weight.scheme.weight, weight.packed["codes"]
    if quant.bits == 8:
        codes = order.unpack_fp8(packed, *weight.shape).view(torch.float8_e4m3fn)
    else:
        codes = pack_bits(order.unpack_int4(packed, *weight.shape) ^ _inverted(quant), 4)
    return attrs.evolve(weight, codes=codes, layout=PLAIN, packed={})


def operands(weight: QuantizedWeight, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """What the kernel reads of a weight in this layout, for inputs of ``dtype``.

    Scales of groups, and zero points plus 2^7 (bf16) or 2^10 (fp16), in ``dtype``; scales of rows in float32, one for
    every row.
    """
    import torch

    quant, (n, _) = weight.scheme.weight, weight.shape
    held = {"w": weight.packed["codes"]}
    if quant.granularity != "group":
        return {**held, "row_scale": weight.scale.float().expand(n, 1).flatten().contiguous()}
    held["group_scale"] = order.pack_pairs(weight.scale.to(dtype)).contiguous()
    if weight.zero_point is not None:
        base = (1024 if dtype == torch.float16 else 128) + _inverted(quant)
        held["group_zero"] = order.pack_pairs((weight.zero_point.int() + base).to(dtype)).contiguous()
    return held


def _inverted(quant: TensorQuant) -> int:
    """The bits that are inverted in a packed code; what a zero point is greater by."""
    return _SIGN if quant.dtype == "int4" else 0
