"""Normalization of states and actions with a dataset's statistics, as lerobot does it."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from phyai.errors import CheckpointError

#: Mode to the two statistics that it needs.
STATISTICS: Mapping[str, tuple[str, str]] = {
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}


@attrs.frozen
class Normalizer:
    """One feature's transformation and its inverse.

    ``MEAN_STD``: ``(x - mean) / (std + eps)``; the others map ``[low, high]`` to ``[-1, 1]``, where ``low`` and
    ``high`` are the minimum and maximum or two quantiles; a range of zero counts as ``eps``. ``IDENTITY`` changes
    nothing. (lerobot 0.6.1, ``normalize_processor.py``.)

    >>> state = Normalizer("MIN_MAX", torch.tensor([0.0]), torch.tensor([4.0]))
    >>> state.normalize(torch.tensor([3.0])), state.unnormalize(torch.tensor([0.5]))
    (tensor([0.5000]), tensor([3.]))
    """

    mode: str
    low: torch.Tensor = attrs.field(factory=lambda: torch.zeros(0))
    high: torch.Tensor = attrs.field(factory=lambda: torch.zeros(0))
    eps: float = 1e-8
    _range: torch.Tensor = attrs.field(init=False, repr=False)

    @_range.default
    def _high_less_low(self) -> torch.Tensor:
        span = self.high - self.low
        return torch.where(span == 0, torch.full_like(span, self.eps), span)

    @classmethod
    def build(
        cls, feature: str, mode: str, dim: int, stats: Mapping[str, torch.Tensor], where: str, eps: float = 1e-8
    ) -> Normalizer:
        """The normalizer of ``feature`` from ``stats`` with keys ``<feature>.<statistic>``.

        Raises:
            CheckpointError: a statistic that ``mode`` needs is missing, misshapen, or not finite.
        """
        if mode == "IDENTITY":
            return cls(mode)
        values = []
        for statistic in STATISTICS[mode]:
            value = stats.get(f"{feature}.{statistic}")
            if value is None:
                raise CheckpointError(
                    f"{where} holds no {feature}.{statistic}, which {mode} normalization needs; copy the processor "
                    "files of a checkpoint that was trained on your robot's data, or set the mode to IDENTITY"
                )
            if value.shape != (dim,) or not torch.isfinite(value).all():
                raise CheckpointError(f"{where}: {feature}.{statistic} should be {dim} finite numbers")
            values.append(value.to(torch.float32))
        return cls(mode, values[0], values[1], eps)

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` of shape ``[..., D]`` in the robot's units to the model's."""
        if self.mode == "IDENTITY":
            return x
        if self.mode == "MEAN_STD":
            return (x - self.low) / (self.high + self.eps)
        return 2.0 * (x - self.low) / self._range - 1.0

    def unnormalize(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse: ``x`` of shape ``[..., D]`` in the model's units to the robot's."""
        if self.mode == "IDENTITY":
            return x
        if self.mode == "MEAN_STD":
            return x * self.high + self.low
        return (x + 1.0) * self._range / 2.0 + self.low
