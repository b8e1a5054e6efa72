"""From any description to numbers: the meaning that every packed layout and every kernel is tested against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phyai.errors import CheckpointError
from phyai.quant.formats import PLAIN
from phyai.quant.realize.codes import code_values, scale_values
from phyai.quant.scheme import TensorQuant
from phyai.quant.weight import QuantizedWeight

if TYPE_CHECKING:
    import torch


def dequantize(weight: QuantizedWeight) -> torch.Tensor:
    """The weight that a plain :class:`QuantizedWeight` stands for, float32 ``[N, K]``.

    ``(value - zero_point) * scale``, computed in float32 as the tools do; a second scale is multiplied
    into the scale first. ``pre_scale`` belongs to the input and is not applied.

    Raises:
        CheckpointError: the weight is in a packed layout (unpack it first).
    """
    if weight.layout != PLAIN:
        raise CheckpointError(f"a weight in layout {weight.layout!r} must be unpacked before it is dequantized")
    quant, (n, k) = weight.scheme.weight, weight.shape
    values = code_values(weight.codes, quant.dtype, k)
    if weight.zero_point is not None:
        values -= spread(weight.zero_point.to(values.dtype), quant, n, k, weight.g_idx)
    return values.mul_(spread(effective_scale(weight), quant, n, k, weight.g_idx))


def effective_scale(weight: QuantizedWeight) -> torch.Tensor:
    """Every scale times the second scale, float32, in the scales' own shape."""
    import torch

    scale = scale_values(weight.scale, weight.scheme.weight.scale_dtype)
    if weight.second_scale is not None:
        scale = (scale.to(torch.float64) * weight.second_scale).to(torch.float32)
    return scale


def spread(per_group: torch.Tensor, quant: TensorQuant, n: int, k: int, g_idx: torch.Tensor | None) -> torch.Tensor:
    """Values per group, in a shape that broadcasts against ``[n, k]``."""
    if quant.granularity in ("tensor", "channel"):
        return per_group
    if quant.granularity == "block":
        assert quant.block_shape is not None
        per_group = per_group.repeat_interleave(quant.block_shape[0], dim=0)[:n]
        return per_group.repeat_interleave(quant.block_shape[1], dim=1)[:, :k]
    if g_idx is not None:
        return per_group.index_select(1, g_idx.to(per_group.device).long())
    assert quant.group_size is not None
    return per_group.repeat_interleave(quant.group_size, dim=1)[:, :k]
