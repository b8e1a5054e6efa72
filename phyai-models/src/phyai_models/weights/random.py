"""Random weights in place of a checkpoint: for benchmarks, and wherever the numbers do not matter."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import torch
from phyai.quant import QuantScheme
from phyai.quant.realize import quantize_weight
from phyai.quant.weight import QuantizedWeight

from phyai_models.weights.source import TensorSpec, WeightSource


class RandomSource(WeightSource):
    """Gives every tensor that is asked for normally distributed values, the same for a name, a shape, a seed and a
    kind of device.

    Matrices are scaled so that activations keep their size (by ``fan_in ** -0.5``), layer normalizations' weights lie
    around 1, everything else around 0.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.not_finite = []

    def require(self, specs: Iterable[TensorSpec]) -> None:
        """Whatever is asked for is there."""

    def take(self, name: str, out: torch.Tensor) -> None:
        """Write the values of ``name`` into ``out``. They are drawn in float32, so that dtypes agree up to rounding."""
        seed = (self.seed * 1_000_003 + zlib.crc32(name.encode())) % 2**64  # what torch takes
        generator = torch.Generator(out.device).manual_seed(seed)
        drawn = torch.randn(out.shape, generator=generator, device=out.device, dtype=torch.float32)
        out.copy_(drawn * _scale(name, tuple(out.shape)) + _offset(name))

    def stored_quantized(self, name: str) -> None:
        """Nothing is stored."""

    def quantize(
        self,
        name: str,
        shape: tuple[int, int],
        scheme: QuantScheme,
        method: str,
        device: torch.device,
        *,
        below: Sequence[tuple[str, int]] = (),
    ) -> QuantizedWeight:
        """The matrix ``name``, and those ``below`` it, drawn as a whole and then quantized."""
        weight = torch.empty(shape, dtype=torch.float32, device=device)
        top = shape[0] - sum(rows for _, rows in below)
        self.take(name, weight[:top])
        for part, rows in below:
            self.take(part, weight[top : top + rows])
            top += rows
        return quantize_weight(weight, scheme, method=method)

    def check_finite(self) -> None:
        """They are."""


def _scale(name: str, shape: tuple[int, ...]) -> float:
    if len(shape) == 1:
        return 0.1
    fan_in = torch.Size(shape[1:]).numel()
    return float(fan_in**-0.5) * (0.3 if name.endswith("layernorm.dense.weight") or ".norm.dense" in name else 1.0)


def _offset(name: str) -> float:
    return 1.0 if name.endswith(("layer_norm1.weight", "layer_norm2.weight", "post_layernorm.weight")) else 0.0
