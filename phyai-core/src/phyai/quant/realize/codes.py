"""Codes of the plain layout and the numbers they stand for."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from phyai.quant.elements import Element, element
from phyai.quant.realize.bits import pack_bits, unpack_bits

if TYPE_CHECKING:
    import torch


def torch_fp8(name: str) -> torch.dtype | None:
    """torch's dtype of an 8-bit float, None for any other element type."""
    import torch

    return {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}.get(name)


def plain_codes(codes: torch.Tensor, dtype: str) -> torch.Tensor:
    """Codes ``[N, K]`` in the plain layout: 8-bit types as their torch type, narrower ones as a stream of bits.

    ``codes`` are the integers themselves (any integer type), bit patterns (uint8) for narrow floats, or
    torch's own dtype for 8-bit floats.
    """
    import torch

    kind, bits = element(dtype).kind, element(dtype).bits
    if torch_fp8(dtype) is not None:
        return codes.contiguous()
    if bits == 8:
        return codes.to(torch.int8 if kind == "int" else torch.uint8).contiguous()
    return pack_bits((codes & ((1 << bits) - 1)).to(torch.uint8), bits).contiguous()


def codes_of(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """The codes, in the plain layout, of values that codes stand for exactly."""
    import torch

    fp8 = torch_fp8(dtype)
    if fp8 is not None:
        return values.to(fp8)
    if element(dtype).kind != "float":
        return plain_codes(values.to(torch.int16), dtype)
    return plain_codes(_patterns(values, element(dtype)), dtype)


def _patterns(values: torch.Tensor, info: Element) -> torch.Tensor:
    """The bit patterns of a narrow float's values, given exactly in float32: uint8."""
    import torch

    smallest = 2.0 ** (1 - info.bias)  # of those that are normal; below it, codes count multiples of the quantum
    size = values.abs()
    below = size.clamp(max=smallest).mul_(2.0**info.mantissa / smallest).to(torch.int32)
    above = size.clamp_(min=smallest).view(torch.int32) >> (23 - info.mantissa)  # what float32's mantissa has more
    offset = ((127 - info.bias) << info.mantissa) + (1 << info.mantissa)
    sign = (values.view(torch.int32) >> (32 - info.bits)) & (1 << (info.bits - 1))
    return above.add_(below).sub_(offset).bitwise_or_(sign).to(torch.uint8)


def code_patterns(codes: torch.Tensor, dtype: str, k: int) -> torch.Tensor:
    """The bit patterns of plain codes that are not 8-bit floats, uint8 ``[N, k]``."""
    import torch

    bits = element(dtype).bits
    return codes.view(torch.uint8) if bits == 8 else unpack_bits(codes, bits, k)


def integer_codes(codes: torch.Tensor, dtype: str, k: int) -> torch.Tensor:
    """The integers that plain codes stand for: int8 for signed types, uint8 for unsigned, ``[N, k]``."""
    import torch

    info = element(dtype)
    if info.kind == "float":
        raise TypeError(f"{dtype} codes are not integers")
    if info.bits == 8:
        return codes
    patterns = unpack_bits(codes, info.bits, k)
    if info.kind == "uint":
        return patterns
    half = 1 << (info.bits - 1)
    return (patterns ^ half).to(torch.int8) - half


def code_values(codes: torch.Tensor, dtype: str, k: int) -> torch.Tensor:
    """The numbers that plain codes stand for, before zero points and scales: float32 ``[N, k]``."""
    import torch

    if torch_fp8(dtype) is not None:
        return codes.to(torch.float32)
    if element(dtype).kind != "float":
        return integer_codes(codes, dtype, k).to(torch.float32)
    return float_table(dtype, codes.device)[unpack_bits(codes, element(dtype).bits, k).to(torch.int64)]


@functools.cache  # a CUDA graph may record the look-up, but not the copy that makes the table
def float_table(dtype: str, device: Any = None) -> torch.Tensor:
    """The values of a narrow float type by code, sign bit highest: float32 ``[2**bits]``. Not to be written to."""
    import torch

    positive = torch.tensor(element(dtype).values, dtype=torch.float32, device=device)
    return torch.cat([positive, -positive])


def scale_values(scale: torch.Tensor, scale_dtype: str) -> torch.Tensor:
    """Stored scales as float32; e8m0 codes (uint8) as the powers of two they stand for, code 255 as NaN."""
    import torch

    if scale_dtype != "e8m0":
        return scale.to(torch.float32)
    exponents = scale.view(torch.uint8).to(torch.float32) - 127.0
    return torch.where(exponents == 128.0, torch.nan, torch.exp2(exponents))
