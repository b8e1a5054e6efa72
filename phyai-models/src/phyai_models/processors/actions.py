"""From the model's action chunk to the robot's."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def absolute_mask(action_dim: int, names: Sequence[str] | None, exclude: Sequence[str]) -> torch.Tensor:
    """Which action dimensions are offsets from the state: bool ``[action_dim]``.

    A dimension whose name contains one of ``exclude`` is absolute; without names all are offsets (lerobot's
    ``RelativeActionsProcessorStep``).

    >>> absolute_mask(3, ["x", "y", "left_gripper"], ["gripper"])
    tensor([ True,  True, False])
    """
    words = [str(word).lower() for word in exclude if word]
    relative = torch.ones(action_dim, dtype=torch.bool)
    for i, name in enumerate((names or ())[:action_dim]):
        relative[i] = not any(word in str(name).lower() for word in words)
    return relative


def to_absolute(actions: torch.Tensor, state: torch.Tensor, relative: torch.Tensor) -> torch.Tensor:
    """``actions [..., H, D]`` plus ``state [..., S]`` in the dimensions where ``relative [D]`` holds (``S >= D``)."""
    return actions + (state[..., : relative.shape[0]] * relative).unsqueeze(-2)
