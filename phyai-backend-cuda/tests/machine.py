"""Tensors, what an engine lends, and rows to be examined, on the machine where the tests run: its GPU, or its CPU."""

from __future__ import annotations

import attrs
import torch
from phyai.catalog import Catalog
from phyai.dispatch.resources import EngineResources
from phyai.environment import Device, Environment
from phyai.facts import Facts
from phyai.kernel import Kernel
from phyai.testing.subject import Subject, about

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def granted(kernel: Kernel, catalog: Catalog, facts: Facts) -> Subject:
    """``kernel`` to be examined on the CPU, with the device and the libraries of ``facts`` granted."""
    claim = kernel.when.given({name: value for name, value in facts.items() if name.startswith(("device.", "lib."))})
    here = attrs.evolve(kernel, when=claim)
    kernels = tuple(here if other.id == kernel.id else other for other in catalog.kernels)
    return Subject(here, about(here, attrs.evolve(catalog, kernels=kernels)), Environment.detect("cpu", libraries=()))


class Resources(EngineResources):
    """What an engine lends, with scratch that holds nothing useful."""

    def __init__(self) -> None:
        super().__init__(Device(DEVICE))

    def workspace(self, key: str, nbytes: int) -> torch.Tensor:
        scratch: torch.Tensor = super().workspace(key, nbytes)
        return scratch.fill_(255)
