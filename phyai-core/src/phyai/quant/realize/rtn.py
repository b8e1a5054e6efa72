"""Quantizing a weight by rounding to nearest, with scales from the largest magnitude of each group.

``rtn_mse`` shrinks each group's range by the factor (of a fixed grid) that makes the squared error of the
group's weights smallest; it costs nothing at run time. No calibration data is read.

A weight is read and quantized some rows at a time, so that beside the result only those rows are held.

Documented cases: a group of zeros has zero codes; an infinity or a NaN in the weight is refused, since no
code stands for it; a group whose scale would round to zero gets the smallest scale of the type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from phyai.errors import CheckpointError
from phyai.quant.elements import Element
from phyai.quant.realize.codes import plain_codes, scale_values, torch_fp8
from phyai.quant.realize.quantize import asymmetric_scale, round_to, round_up, second_scale, stored_scale
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.quant.weight import QuantizedWeight

if TYPE_CHECKING:
    import torch


class NotFinite(CheckpointError):
    """A weight holds an infinity or a NaN."""


#: The factors that ``rtn_mse`` tries on each group's range; 0.5 is the next power of two.
SHRINK: tuple[float, ...] = (*(1.0 - 0.02 * i for i in range(1, 16)), 0.5)

#: Elements that are quantized at a time: their float32 copies stay in a core's cache.
CHUNK = 1 << 18
#: A weight is read in at least so many steps, so that the steps' copies stay small beside it.
_STEPS = 16

#: ``read(begin, end)`` gives those rows of a weight, in any floating dtype, on the device where codes should be.
Rows = Callable[[int, int], "torch.Tensor"]


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
    for begin, end, groups in _chunks(read, shape, quant, chunk):
        rows = (end - begin, shape[1])
        found = scales or _of_groups(groups, quant, second, method)
        part = _codes(groups.ungrouped(_rounded(groups.values, found, quant), rows), quant)
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


@attrs.frozen(eq=False)
class _Groups:
    """Some rows with the values of one group along the last dimension: ``values [R, C, E]``, float32.

    Groups at an edge are filled up with zeros; ``padding`` is True there, and None where nothing was filled up.
    """

    values: torch.Tensor
    tile: tuple[int, int]
    padding: torch.Tensor | None = None

    @classmethod
    def of(cls, w: torch.Tensor, quant: TensorQuant) -> _Groups:
        import torch

        n, k = w.shape
        if quant.granularity == "tensor":
            return cls(w.reshape(1, 1, -1), (n, k))
        rows, columns = tile = quant.block_shape or (1, quant.group_size or k)
        fill = (0, -k % columns, 0, -n % rows)
        if not any(fill):
            return cls(_tiled(w, tile), tile)
        outside = torch.nn.functional.pad(torch.zeros_like(w, dtype=torch.bool), fill, value=True)
        return cls(_tiled(torch.nn.functional.pad(w, fill), tile), tile, _tiled(outside, tile))

    @property
    def rows_per_scale(self) -> int:
        return self.tile[0]

    def ungrouped(self, values: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        """Values in the form of :attr:`values` as a matrix of ``shape``."""
        (n, k), (rows, columns) = shape, self.tile
        if values.shape[:2] == (1, 1) or rows == 1:
            return values.reshape(-1, values.shape[1] * columns)[:n, :k]
        blocks = values.reshape(values.shape[0], values.shape[1], rows, columns).transpose(1, 2)
        return blocks.reshape(values.shape[0] * rows, -1)[:n, :k]

    def extremes(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The smallest and the largest value of every group, zero included: ``[R, C]`` each."""
        return self.values.amin(-1).clamp_(max=0), self.values.amax(-1).clamp_(min=0)


def _tiled(w: torch.Tensor, tile: tuple[int, int]) -> torch.Tensor:
    """A matrix that whole tiles make up, with the values of one tile along the last dimension."""
    rows, columns = tile
    if rows == 1:
        return w.reshape(w.shape[0], -1, columns)
    blocks = w.reshape(w.shape[0] // rows, rows, w.shape[1] // columns, columns)
    return blocks.transpose(1, 2).reshape(blocks.shape[0], blocks.shape[2], -1)


def _chunks(read: Rows, shape: tuple[int, int], quant: TensorQuant, chunk: int) -> Iterator[tuple[int, int, _Groups]]:
    """The weight, some rows at a time, in groups."""
    import torch

    n, k = shape
    step = 1 if quant.block_shape is None else quant.block_shape[0]
    rows = max(min(chunk // max(k, 1), -(-n // _STEPS)) // step * step, step)
    for begin in range(0, n, rows):
        end = min(begin + rows, n)
        yield begin, end, _Groups.of(read(begin, end).to(torch.float32), quant)


def _whole(read: Rows, shape: tuple[int, int], quant: TensorQuant, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and the largest value of the whole weight, zero included: ``[1, 1]`` each."""
    low: Any = None
    high: Any = None
    for _, _, groups in _chunks(read, shape, quant, chunk):
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


def _of_groups(groups: _Groups, quant: TensorQuant, second: torch.Tensor | None, method: str) -> _Scales:
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
    for _, _, groups in _chunks(read, shape, quant, chunk):
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


def _squared_error(groups: _Groups, scales: _Scales, quant: TensorQuant) -> torch.Tensor:
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


def _codes(values: torch.Tensor, quant: TensorQuant) -> torch.Tensor:
    import torch

    fp8 = torch_fp8(quant.dtype)
    if fp8 is not None:
        return values.to(fp8)
    if quant.element.kind != "float":
        return plain_codes(values.to(torch.int16), quant.dtype)
    return plain_codes(_patterns(values, quant.element), quant.dtype)


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
