"""Tensors, and what an engine lends, on the machine where the tests run: on its GPU, or on its CPU."""

from __future__ import annotations

import torch
from phyai.dispatch.resources import EngineResources
from phyai.environment import Device

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


class Resources(EngineResources):
    """What an engine lends, with scratch that holds nothing useful."""

    def __init__(self) -> None:
        super().__init__(Device(DEVICE))

    def workspace(self, key: str, nbytes: int) -> torch.Tensor:
        scratch: torch.Tensor = super().workspace(key, nbytes)
        return scratch.fill_(255)
