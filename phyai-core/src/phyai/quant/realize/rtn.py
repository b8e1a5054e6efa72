"""Quantizing a weight by rounding to nearest, with scales from the largest magnitude of each group.

``rtn_mse`` shrinks each group's range by the factor (of a fixed grid) that makes the squared error of the
group's weights smallest; it costs nothing at run time. No calibration data is read.

A weight is read and quantized some rows at a time, so that beside the result only those rows are held.

Documented cases: a group of zeros has zero codes; an infinity or a NaN in the weight is refused, since no
code stands for it; a group whose scale would round to zero gets the smallest scale of the type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from phyai.errors import CheckpointError
from phyai.quant.realize.codes import codes_of, scale_values
from phyai.quant.realize.groups import CHUNK, Groups, Rows, chunks
from phyai.quant.realize.quantize import asymmetric_scale, round_to, round_up, second_scale, stored_scale
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.quant.weight import QuantizedWeight

if TYPE_CHECKING:
    import torch


class NotFinite(CheckpointError):
    """A weight holds an infinity or a NaN."""


#: The factors that ``rtn_mse`` tries on each group's range; 0.5 is the next power of two.
SHRINK: tuple[float, ...] = (*(1.0 - 0.02 * i for i in range(1, 16)), 0.5)


def quantize_weight(weight: torch.Tensor, scheme: QuantScheme, *, method: str = "rtn") -> QuantizedWeight:
    """Quantize ``[N, K]`` of any floating dtype by ``scheme``; the last group of a row may be short.

    Raises:
        CheckpointError: the weight holds an infinity or a NaN, or the scheme needs more than the weight
            (a static input scale, a group index, a pre-scale).
    """
    n, k = weight.shape
    return quantize_rows(lambda begin, end: weight[begin:end], (n, k), scheme, method=method)


def quantize_rows(
    read: Rows, shape: tuple[int, int], scheme: QuantScheme, *, method: str = "rtn", chunk: int = CHUNK
) -> QuantizedWeight:
    """:func:`quantize_weight` of a weight that is read some rows at a time, about ``chunk`` elements.

    Where one scale spans the whole tensor the rows are read more than once.

    Raises:
        CheckpointError: as :func:`quantize_weight`.
    """
    if scheme.pre_scale or scheme.weight.g_idx or (scheme.input is not None and not scheme.input.dynamic):
        raise CheckpointError(f"{scheme.name} needs calibration data, which rounding to nearest does not have")
    quant = scheme.weight
    second, scales = None, None
    if quant.second_scale or quant.granularity == "tensor":
        low, high = _whole(read, shape, quant, chunk)
        second = second_scale(low.abs().maximum(high.abs()), quant)
    if quant.granularity == "tensor":
        scales = _of_tensor(read, shape, quant, low, high, second, method, chunk)
    codes = scale = zero = None
    for begin, end, groups in chunks(read, shape, quant, chunk):
        rows = (end - begin, shape[1])
        found = scales or _of_groups(groups, quant, second, method)
        part = codes_of(groups.ungrouped(_rounded(groups.values, found, quant), rows), quant.dtype)
        codes = _put(codes, part, begin, shape[0])
        if scales is None:
            row = begin // groups.rows_per_scale
            scale = _put(scale, found.stored, row, quant.scale_shape(*shape)[0])
            zero = None if found.zero is None else _put(zero, found.zero, row, quant.scale_shape(*shape)[0])
    if scales is not None:
        scale, zero = scales.stored, scales.zero
    import torch

    zero_dtype = torch.int16 if quant.zero_point == "int" else torch.float32
    return QuantizedWeight(
        scheme=scheme,
        shape=shape,
        codes=codes,
        scale=scale,
        zero_point=None if zero is None else zero.to(zero_dtype),
        second_scale=second,
    )


def _whole(read: Rows, shape: tuple[int, int], quant: TensorQuant, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and the largest value of the whole weight, zero included: ``[1, 1]`` each."""
    low: Any = None
    high: Any = None
    for _, _, groups in chunks(read, shape, quant, chunk):
        some_low, some_high = (bound.reshape(-1) for bound in groups.extremes())
        _require_finite(some_low, some_high)
        low = some_low.amin() if low is None else low.minimum(some_low.amin())
        high = some_high.amax() if high is None else high.maximum(some_high.amax())
    return low.reshape(1, 1), high.reshape(1, 1)


def _require_finite(low: torch.Tensor, high: torch.Tensor) -> None:
    if not bool((high - low).sum().isfinite()) and not (bool(low.isfinite().all()) and bool(high.isfinite().all())):
        raise NotFinite("the weight holds an infinity or a NaN, which no code stands for")


@attrs.frozen(eq=False)
class _Scales:
    """Scales of every group, ``[R, C]``: as stored, as numbers (the second scale included), and zero points."""

    stored: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None = None


def _of_groups(groups: Groups, quant: TensorQuant, second: torch.Tensor | None, method: str) -> _Scales:
    """The scales of groups that are there as a whole."""
    low, high = groups.extremes()
    _require_finite(low, high)
    best = _attempt(low, high, quant, second)
    if method != "rtn_mse":
        return best
    least = _squared_error(groups, best, quant)
    for factor in SHRINK:
        tried = _attempt(low * factor, high * factor, quant, second)
        error = _squared_error(groups, tried, quant)
        best, least = _better(best, least, tried, error)
    return best


def _of_tensor(
    read: Rows,
    shape: tuple[int, int],
    quant: TensorQuant,
    low: torch.Tensor,
    high: torch.Tensor,
    second: torch.Tensor | None,
    method: str,
    chunk: int,
) -> _Scales:
    """The scale of a whole tensor: as :func:`_of_groups`, with the errors summed over the rows as they are read."""
    factors = (1.0, *SHRINK) if method == "rtn_mse" else (1.0,)
    tried = [_attempt(low * factor, high * factor, quant, second) for factor in factors]
    best = tried[0]
    if len(tried) == 1:
        return best
    errors: list[Any] = [0.0] * len(tried)
    for _, _, groups in chunks(read, shape, quant, chunk):
        errors = [e + _squared_error(groups, t, quant) for e, t in zip(errors, tried, strict=True)]
    least = errors[0]
    for other, error in zip(tried[1:], errors[1:], strict=True):
        best, least = _better(best, least, other, error)
    return best


def _attempt(low: torch.Tensor, high: torch.Tensor, quant: TensorQuant, second: torch.Tensor | None) -> _Scales:
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


def _better(best: _Scales, least: torch.Tensor, tried: _Scales, error: torch.Tensor) -> tuple[_Scales, torch.Tensor]:
    """For every group the scales with the smaller error, and that error."""
    import torch

    better = error < least
    pick = [
        None if old is None or new is None else _where(better, new, old)
        for new, old in ((tried.stored, best.stored), (tried.scale, best.scale), (tried.zero, best.zero))
    ]
    return _Scales(*pick), torch.where(better, error, least)  # type: ignore[arg-type]


def _where(condition: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """``torch.where`` that also takes 8-bit floats."""
    import torch

    if new.element_size() == 1:
        return torch.where(condition, new.view(torch.uint8), old.view(torch.uint8)).view(new.dtype)
    return torch.where(condition, new, old)


def _rounded(values: torch.Tensor, scales: _Scales, quant: TensorQuant) -> torch.Tensor:
    """The numbers that the codes stand for, before zero points are taken off and scales multiplied."""
    values = values / scales.scale[..., None]
    if scales.zero is not None:
        values += scales.zero[..., None]
    return round_to(values, quant.element)


def _squared_error(groups: Groups, scales: _Scales, quant: TensorQuant) -> torch.Tensor:
    """The squared error of every group, ``[R, C]``."""
    values = _rounded(groups.values, scales, quant)
    if scales.zero is not None:
        values -= scales.zero[..., None]
    error = values.mul_(scales.scale[..., None]).sub_(groups.values).square_()
    if groups.padding is not None:  # what fills a group up is no weight, though a zero point can give it an error
        error.masked_fill_(groups.padding, 0.0)
    return error.sum(-1)


def _put(whole: torch.Tensor | None, part: torch.Tensor, begin: int, rows: int) -> torch.Tensor:
    """``part`` written into rows of ``whole`` from ``begin`` on; None makes one of so many rows."""
    if whole is None:
        whole = part.new_empty((rows, *part.shape[1:]))
    whole[begin : begin + part.shape[0]] = part
    return whole
