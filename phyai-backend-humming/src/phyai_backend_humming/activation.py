"""``humming.quantize_activation``, and the inputs of the rows with 8-bit inputs: one launch for scales and codes."""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
import triton
import triton.language as tl
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.quant.scheme import TensorQuant

#: How the codes of each format are stored; of int4 two lie in a byte, the first in its low half.
_CODES: Mapping[str, torch.dtype] = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn, "int4": torch.uint8}


@triton.jit
def _quantize(
    x, static, codes, scales, size, LARGEST: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    STATIC: tl.constexpr, INVERSE: tl.constexpr, ROUND: tl.constexpr, PACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Slice p of ``size`` elements: ``scales[p] = amax / LARGEST`` (1 where that is 0), ``codes = x / scales[p]``.

    INVERSE multiplies by ``HIGH / (scale * HIGH)`` instead of dividing. ROUND: to the nearest integer, ties to even.
    PACK: two codes to a byte.
    """
    p = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    if PACK:
        keep = d < size // 2
        v = tl.load(x + p * size + 2 * d, keep, 0.0).to(tl.float32)
        w = tl.load(x + p * size + 2 * d + 1, keep, 0.0).to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(v), 0), tl.max(tl.abs(w), 0))
    else:
        keep = d < size
        v = tl.load(x + p * size + d, keep, 0.0).to(tl.float32)
        largest = tl.max(tl.abs(v), 0)
    if STATIC:
        scale = tl.load(static)
    else:
        scale = tl.div_rn(largest, LARGEST)
        scale = tl.where(scale == 0.0, 1.0, scale)
    factor = tl.div_rn(HIGH, scale * HIGH)
    q = _codes_of(v, scale, factor, LOW, HIGH, INVERSE, ROUND)
    if PACK:
        second = _codes_of(w, scale, factor, LOW, HIGH, INVERSE, ROUND)
        both = (q.to(tl.int32) & 15) | ((second.to(tl.int32) & 15) << 4)
        tl.store(codes + p * (size // 2) + d, both.to(tl.uint8), keep)
    else:
        tl.store(codes + p * size + d, q.to(codes.dtype.element_ty), keep)
    if not STATIC:
        tl.store(scales + p, tl.div_rn(1.0, factor) if INVERSE else scale)


@triton.jit
def _codes_of(
    v, scale, factor, LOW: tl.constexpr, HIGH: tl.constexpr, INVERSE: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    if INVERSE:
        q = v * factor
    else:
        q = tl.div_rn(v, scale)
    q = tl.minimum(tl.maximum(q, LOW), HIGH)
    if ROUND:
        q = (q + 12582912.0) - 12582912.0  # 1.5 * 2**23: what is left is a whole number
    return q


@attrs.frozen
class Rounding:
    """How values become codes: their type and how many are in one of it, the largest magnitude's share in a scale,
    and the range of codes."""

    dtype: torch.dtype
    largest: float
    low: float
    high: float
    inverse: bool = False
    packed: int = 1

    @classmethod
    def of(cls, quant: TensorQuant) -> Rounding:
        """That of a scheme's inputs.

        Raises:
            ValueError: the scheme's scales are of a type that the kernel does not round to.
        """
        element = quant.element
        if quant.scale_dtype != "fp32":
            raise ValueError(f"scales of inputs are fp32 here, not {quant.scale_dtype}")
        span = (element.maximum - element.minimum) / 2
        largest = span if quant.scale_rule == "full_range" else element.maximum
        inverse = quant.scale_rule == "inverse"
        packed = 2 if quant.bits == 4 else 1
        return cls(_CODES[quant.dtype], largest, element.minimum, element.maximum, inverse, packed)

    def empty(self, rows: torch.Tensor) -> torch.Tensor:
        """Memory for the codes of ``rows [M, K]``."""
        return torch.empty(rows.shape[0], rows.shape[1] // self.packed, dtype=self.dtype, device=rows.device)


def quantize(
    rows: torch.Tensor, size: int, rounding: Rounding, codes: torch.Tensor, scales: torch.Tensor,
    static: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Fill ``codes`` and ``scales``, one for every ``size`` elements of contiguous ``rows``; read ``static`` ones."""
    block = triton.next_power_of_2(size // rounding.packed)
    _quantize[(rows.numel() // size,)](
        rows, static, codes, scales, size, LARGEST=rounding.largest, LOW=rounding.low, HIGH=rounding.high,
        STATIC=static is not None, INVERSE=rounding.inverse, ROUND=rounding.dtype != torch.float8_e4m3fn,
        PACK=rounding.packed == 2, BLOCK=block,
        num_warps=max(1, min(16, block // 512)),
    )  # fmt: skip


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    name, granularity = str(facts["attrs.format"]), facts["attrs.granularity"]
    top = 127.0 if name == "int8" else 448.0
    rounding = Rounding(_CODES[name], top, -top, top)
    group = int(str(facts["attrs.group_size"])) if granularity == "group" else None

    def run(
        x: torch.Tensor,
        scale: torch.Tensor | None = None,
        out: tuple[torch.Tensor, torch.Tensor] | None = None,
        state: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        width = x.shape[-1]
        size = group or width
        rows = x.contiguous()
        codes = torch.empty(x.shape, dtype=rounding.dtype, device=x.device)
        scales = (
            codes.new_empty((*x.shape[:-1], width // size), dtype=torch.float32) if scale is None else scale.clone()
        )
        if rows.numel():
            quantize(rows, size, rounding, codes, scales, scale)
        if out is None:
            return codes, scales
        out[0].copy_(codes)
        out[1].copy_(scales)
        return out

    return Prepared(run)
