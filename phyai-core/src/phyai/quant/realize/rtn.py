"""Quantizing a weight by rounding to nearest, with scales from the largest magnitude of each group.

``rtn_mse`` shrinks each group's range by the factor (of a fixed grid) that makes the squared error of the
group's weights smallest; it costs nothing at run time. No calibration data is read.

Documented cases: a group of zeros has zero codes; an infinity or a NaN in the weight is refused, since no
code stands for it; a group whose scale would round to zero gets the smallest scale of the type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from phyai.errors import CheckpointError
from phyai.quant.realize.codes import float_table, plain_codes, scale_values, torch_fp8
from phyai.quant.realize.dequantize import spread
from phyai.quant.realize.quantize import asymmetric_scale, round_to, round_up, second_scale, stored_scale
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.quant.weight import QuantizedWeight

if TYPE_CHECKING:
    import torch

#: The factors that ``rtn_mse`` tries on each group's range; 0.5 is the next power of two.
SHRINK: tuple[float, ...] = (*(1.0 - 0.02 * i for i in range(1, 16)), 0.5)


def quantize_weight(weight: torch.Tensor, scheme: QuantScheme, *, method: str = "rtn") -> QuantizedWeight:
    """Quantize ``[N, K]`` of any floating dtype by ``scheme``; the last group of a row may be short.

    Raises:
        CheckpointError: the weight holds an infinity or a NaN, or the scheme needs more than the weight
            (a static input scale, a group index, a pre-scale).
    """
    import torch

    if scheme.pre_scale or scheme.weight.g_idx or (scheme.input is not None and not scheme.input.dynamic):
        raise CheckpointError(f"{scheme.name} needs calibration data, which rounding to nearest does not have")
    if not bool(torch.isfinite(weight).all()):
        raise CheckpointError("the weight holds an infinity or a NaN, which no code stands for")
    w, quant = weight.to(torch.float32), scheme.weight
    low, high = _extremes(w, quant)
    second = second_scale(low.abs().maximum(high.abs()), quant)
    best = _attempt(w, low, high, quant, second)
    if method == "rtn_mse":
        best = _least_squares(w, low, high, quant, second, best)
    zero_dtype = torch.int16 if quant.zero_point == "int" else torch.float32
    return QuantizedWeight(
        scheme=scheme,
        shape=(weight.shape[0], weight.shape[1]),
        codes=_codes(_rounded(w, best, quant), quant),
        scale=best.stored,
        zero_point=None if best.zero is None else best.zero.to(zero_dtype),
        second_scale=second,
    )


@attrs.frozen(eq=False)
class _Scales:
    """Scales of every group: as stored, as numbers (the second scale included), and zero points."""

    stored: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None = None


def _attempt(
    w: torch.Tensor, low: torch.Tensor, high: torch.Tensor, quant: TensorQuant, second: torch.Tensor | None
) -> _Scales:
    if quant.zero_point is not None:
        exact, _ = asymmetric_scale(low, high, quant)
        stored = round_up(exact, quant.scale_dtype)
        scale = stored.to(exact.dtype)
        zero = quant.element.minimum - low / scale
        if quant.zero_point == "int":
            zero = zero.round().clamp(quant.element.minimum, quant.element.maximum)
        return _Scales(stored, scale, zero)
    stored = stored_scale(low.abs().maximum(high.abs()), quant, second)
    scale = scale_values(stored, quant.scale_dtype)
    if second is not None:
        scale = (scale.double() * second).float()
    return _Scales(stored, scale)


def _least_squares(
    w: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    quant: TensorQuant,
    second: torch.Tensor | None,
    best: _Scales,
) -> _Scales:
    """For every group the scales of the range, of those tried, whose squared error is smallest."""
    import torch

    least = _squared_error(w, best, quant)
    for factor in SHRINK:
        tried = _attempt(w, low * factor, high * factor, quant, second)
        error = _squared_error(w, tried, quant)
        better = error < least
        least = torch.where(better, error, least)
        pick = [
            None if old is None or new is None else _where(better, new, old)
            for new, old in ((tried.stored, best.stored), (tried.scale, best.scale), (tried.zero, best.zero))
        ]
        best = _Scales(*pick)  # type: ignore[arg-type]
    return best


def _where(condition: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """``torch.where`` that also takes 8-bit floats."""
    import torch

    if new.element_size() == 1:
        return torch.where(condition, new.view(torch.uint8), old.view(torch.uint8)).view(new.dtype)
    return torch.where(condition, new, old)


def _rounded(w: torch.Tensor, scales: _Scales, quant: TensorQuant) -> torch.Tensor:
    """The numbers that the codes stand for, before zero points are taken off and scales multiplied."""
    n, k = w.shape
    values = w / spread(scales.scale, quant, n, k, None)
    if scales.zero is not None:
        values = values + spread(scales.zero, quant, n, k, None)
    return round_to(values, quant.element)


def _squared_error(w: torch.Tensor, scales: _Scales, quant: TensorQuant) -> torch.Tensor:
    n, k = w.shape
    values = _rounded(w, scales, quant)
    if scales.zero is not None:
        values = values - spread(scales.zero, quant, n, k, None)
    error = (values * spread(scales.scale, quant, n, k, None) - w).square()
    return _grouped(error, quant).sum(-1).reshape(scales.scale.shape)


def _extremes(w: torch.Tensor, quant: TensorQuant) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and largest value of every group, zero included, in the scales' shape."""
    groups = _grouped(w, quant)
    shape = quant.scale_shape(*w.shape)
    return groups.amin(-1).clamp(max=0).reshape(shape), groups.amax(-1).clamp(min=0).reshape(shape)


def _grouped(w: torch.Tensor, quant: TensorQuant) -> torch.Tensor:
    """The values with those of one group along the last dimension; short groups are filled with zeros."""
    import torch

    n, k = w.shape
    if quant.granularity == "tensor":
        return w.reshape(1, -1)
    if quant.granularity == "channel":
        return w
    rows, columns = (1, quant.group_size or k) if quant.block_shape is None else quant.block_shape
    padded = torch.nn.functional.pad(w, (0, -k % columns, 0, -n % rows))
    blocks = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    return blocks.transpose(1, 2).reshape(blocks.shape[0], blocks.shape[2], rows * columns)


def _codes(values: torch.Tensor, quant: TensorQuant) -> torch.Tensor:
    import torch

    fp8 = torch_fp8(quant.dtype)
    if fp8 is not None:
        return values.to(fp8)
    if quant.element.kind != "float":
        return plain_codes(values.to(torch.int16), quant.dtype)
    table = float_table(quant.dtype, values.device)
    half = table.numel() // 2
    patterns = torch.searchsorted(table[:half].contiguous(), values.abs().contiguous())
    patterns |= torch.signbit(values).to(patterns.dtype) * half
    return plain_codes(patterns, quant.dtype)
