"""From numbers to codes: rounding to an element type, and scales that follow from the data.

Used where scales are computed: inputs that are quantized at run time, and weights quantized at load.
All arithmetic is float32 (float64 for float64 data).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from phyai.quant.elements import Element
from phyai.quant.realize.codes import scale_values
from phyai.quant.scheme import TensorQuant

if TYPE_CHECKING:
    import torch

#: The e4m3 scale of a group of zeros, as compressed-tensors has it, and the smallest that e4m3 holds.
_E4M3_OF_ZERO = 0.125
_E4M3_SMALLEST = 2.0**-9


@attrs.frozen(eq=False)
class QuantizedInput:
    """An activation ``[M, K]``, quantized: the numbers that its codes stand for, with scales per group.

    ``values`` are integers or narrow floats held in a wide float type; the input is
    ``(values - zero_point) * scale`` with ``scale`` and ``zero_point`` broadcast over the groups of ``K``:
    ``[1, 1]`` (tensor), ``[M, 1]`` (token) or ``[M, groups]``.
    """

    values: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None
    group_size: int | None = None

    def dequantized(self) -> torch.Tensor:
        """The numbers that the quantized input stands for, ``[M, K]``."""
        values, k = self.values, self.values.shape[1]
        if self.zero_point is not None:
            values = values - over_inputs(self.zero_point, self.group_size, k)
        return values * over_inputs(self.scale, self.group_size, k)


def quantize_input(
    x: torch.Tensor,
    quant: TensorQuant,
    scale: torch.Tensor | None = None,
    zero_point: torch.Tensor | None = None,
) -> QuantizedInput:
    """Quantize an activation ``[M, K]`` (float32 or float64).

    ``scale`` and ``zero_point`` are the stored ones of a static input, ``scale`` the second scale of a
    dynamic input that has one (None: it follows from the whole tensor); see
    :class:`phyai.quant.weight.QuantizedWeight`.
    """
    size = quant.group_size
    if not quant.dynamic:
        assert scale is not None
        used = scale.to(x.dtype).reshape(1, 1)
        zero = None if zero_point is None else zero_point.to(x.dtype).reshape(1, 1)
    else:
        low, high = _extremes(x, quant)
        if quant.zero_point is None:
            amax = low.abs().maximum(high.abs())
            used, zero = symmetric_scale(amax, quant, scale if scale is not None else second_scale(amax, quant)), None
        else:
            used, zero = asymmetric_scale(low, high, quant)
    if quant.scale_rule == "inverse":
        factor = quant.element.maximum / (used * quant.element.maximum)
        return QuantizedInput(round_to(x * factor, quant.element), 1.0 / factor, zero, size)
    divided = x / over_inputs(used, size, x.shape[1])
    if zero is not None:
        divided = divided + over_inputs(zero, size, x.shape[1])
    return QuantizedInput(round_to(divided, quant.element), used, zero, size)


def _extremes(x: torch.Tensor, quant: TensorQuant) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and largest value of every group, zero included."""
    import torch

    if quant.group_size is not None:
        groups = quant.groups(x.shape[1])
        pad = groups * quant.group_size - x.shape[1]
        x = torch.nn.functional.pad(x, (0, pad)).reshape(x.shape[0], groups, quant.group_size)
        low, high = x.amin(-1), x.amax(-1)
    elif quant.granularity == "tensor":
        low, high = (x.amin(), x.amax()) if x.numel() else (x.new_zeros(()), x.new_zeros(()))
        low, high = low.reshape(1, 1), high.reshape(1, 1)
    else:
        low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    return low.clamp(max=0), high.clamp(min=0)


def over_inputs(per_group: torch.Tensor, group_size: int | None, k: int) -> torch.Tensor:
    """Values per group, in a shape that broadcasts against ``[M, k]``."""
    return per_group if group_size is None else per_group.repeat_interleave(group_size, dim=1)[:, :k]


def symmetric_scale(amax: torch.Tensor, quant: TensorQuant, second: torch.Tensor | None = None) -> torch.Tensor:
    """The scale of each group by its largest magnitude, rounded to the scale type; the second scale included.

    A group of zeros gets a scale that is not zero (its values are zero whatever it is).
    """
    import torch

    stored = stored_scale(amax, quant, second)
    wide = scale_values(stored, quant.scale_dtype).to(amax.dtype) if stored.dtype != amax.dtype else stored
    return wide if second is None else (wide.to(torch.float64) * second).to(amax.dtype)


def stored_scale(amax: torch.Tensor, quant: TensorQuant, second: torch.Tensor | None = None) -> torch.Tensor:
    """The scale of each group by its largest magnitude, in the scale type: e8m0 as uint8.

    fp32 scales keep amax's dtype. A scale that would round to zero becomes the type's smallest, that of a group
    of zeros becomes 1 (0.125 in e4m3).
    """
    import torch

    info = quant.element
    if quant.scale_rule.startswith("mx_"):
        exponent = power_of_two(amax, info, quant.scale_rule).clamp(-127, 127)
        return (exponent + 127).to(torch.uint8) if quant.scale_dtype == "e8m0" else torch.exp2(exponent)
    largest = (info.maximum - info.minimum) / 2 if quant.scale_rule == "full_range" else info.maximum
    scale = amax / largest
    if quant.scale_dtype == "fp8_e4m3":
        local = scale if second is None else (scale / second.to(torch.float64)).to(scale.dtype)
        local = torch.where(amax == 0, _E4M3_OF_ZERO, local.clamp(_E4M3_SMALLEST, 448.0))
        return local.to(torch.float8_e4m3fn)
    stored = round_up(scale, quant.scale_dtype)
    return torch.where(amax == 0, torch.ones_like(stored), stored)


def round_up(scale: torch.Tensor, scale_dtype: str) -> torch.Tensor:
    """Positive scales in their type, no smaller than they are, so that the largest value of a group is not clipped.

    What is too small for the type becomes its smallest value, what is too large its largest.
    """
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(scale_dtype, scale.dtype)
    limits = torch.finfo(dtype)
    narrow = scale.clamp(max=limits.max).to(dtype)
    if dtype != scale.dtype:  # the next larger value of a positive float has the next larger bit pattern
        up = (narrow.view(torch.int16) + 1).view(dtype)
        narrow = torch.where((narrow.to(scale.dtype) < scale) & torch.isfinite(up), up, narrow)
    smallest = torch.full_like(narrow, limits.smallest_normal * limits.eps)
    return torch.where(narrow == 0, smallest, narrow)


def second_scale(amax: torch.Tensor, quant: TensorQuant) -> torch.Tensor | None:
    """The second scale that puts the largest e4m3 scale of a tensor at 448: a float64 scalar.

    It is the inverse of a float32, as compressed-tensors stores it; 1 for a tensor of zeros.
    """
    import torch

    if not quant.second_scale:
        return None
    top = amax.amax() if amax.numel() else amax.new_zeros(())
    divisor = (448.0 * quant.element.maximum / top).to(torch.float32)
    return 1.0 / torch.where(torch.isfinite(divisor), divisor, 1.0).to(torch.float64)


def power_of_two(amax: torch.Tensor, info: Element, rule: str) -> torch.Tensor:
    """The exponent of a power-of-two scale for a group of this largest magnitude.

    ``mx_floor``: floor(log2(amax)) - emax (OCP MX 1.0); ``mx_ceil``: ceil(log2(amax / largest)), so that
    nothing is clipped; ``mx_even``: floor(log2(amax rounded to the element's precision)) - emax.
    Zero gives -127.
    """
    import torch

    emax = torch.frexp(torch.tensor(info.maximum, dtype=torch.float64))[1].item() - 1
    if rule == "mx_ceil":
        mantissa, exponent = torch.frexp(amax / info.maximum)
        exponent = exponent - (mantissa == 0.5).to(exponent.dtype)
    else:
        mantissa, exponent = torch.frexp(amax)
        if rule == "mx_even":
            kept = info.mantissa if info.bits == 6 else 1
            exponent = exponent + (mantissa >= 1.0 - 2.0 ** -(kept + 2)).to(exponent.dtype)
        exponent = exponent - 1 - emax
    return torch.where(amax == 0, -127.0, exponent.to(amax.dtype))


def asymmetric_scale(low: torch.Tensor, high: torch.Tensor, quant: TensorQuant) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point that map [low, high] onto all codes; the zero point is rounded unless it is a float."""
    import torch

    info = quant.element
    scale = (high - low) / (info.maximum - info.minimum)
    scale = torch.where(scale == 0, 1.0, scale)
    zero = info.minimum - low / scale
    if quant.zero_point == "int":
        zero = zero.round().clamp(info.minimum, info.maximum)
    return scale, zero


def round_to(x: torch.Tensor, info: Element) -> torch.Tensor:
    """The nearest values of an element type, ties to even, out of range to the largest; in x's own dtype."""
    import torch

    clamped = x.clamp(info.minimum, info.maximum)
    if info.kind != "float":
        return clamped.round_()
    integer, exponent_bits = {8: (torch.int64, 0x7FF << 52)}.get(x.element_size(), (torch.int32, 0xFF << 23))
    power = (clamped.view(integer) & exponent_bits).view(x.dtype)  # the largest power of two that is not larger
    quantum = power.clamp_(min=2.0 ** (1 - info.bias)).mul_(2.0**-info.mantissa)
    return clamped.div_(quantum).round_().mul_(quantum)
