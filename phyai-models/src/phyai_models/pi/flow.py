"""Flow matching: the times of the steps, their embedding, and Euler's method."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Trace = Callable[[str, torch.Tensor], None]


def times(steps: int) -> torch.Tensor:
    """The times at which velocities are asked for, from 1 (noise) down: float32 ``[steps]``.

    >>> times(4)
    tensor([1.0000, 0.7500, 0.5000, 0.2500])
    """
    return torch.tensor([1.0 + step * (-1.0 / steps) for step in range(steps)], dtype=torch.float32)


def embed_time(time: torch.Tensor, width: int, min_period: float, max_period: float) -> torch.Tensor:
    """Sines, then cosines, of ``time [S]`` at ``width / 2`` periods in geometric progression: ``[S, width]``.

    Computed in float64 and rounded to float32 (openpi's ``create_sinusoidal_pos_embedding``).
    """
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64)
    period = min_period * (max_period / min_period) ** fraction
    angles = time.to(torch.float64)[:, None] * (1.0 / period * 2 * math.pi)
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(torch.float32)


def euler(
    noise: torch.Tensor, steps: int, velocity: Callable[[torch.Tensor, int], torch.Tensor], trace: Trace | None = None
) -> torch.Tensor:
    """Integrate ``dx/dt = velocity`` from t = 1 to t = 0 in equal steps; x starts at ``noise``.

    >>> euler(torch.ones(1), 4, lambda x, step: torch.full_like(x, 2.0))
    tensor([-1.])
    """
    x = noise
    for step in range(steps):
        v = velocity(x, step)
        if trace is not None:
            trace(f"step{step:02d}.x", x)
            trace(f"step{step:02d}.v", v)
        x = torch.add(x, v, alpha=-1.0 / steps)  # one kernel
    return x
