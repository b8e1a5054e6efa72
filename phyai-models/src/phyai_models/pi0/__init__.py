"""π0."""

from __future__ import annotations

import attrs
from phyai.engine import Host

from phyai_models.pi.config import PiConfig
from phyai_models.pi.hosted import (
    ActionChunk,
    DeviceBatch,
    HostedPi,
    LerobotBatch,
    NewWeights,
    PiArgs,
    RandomCheckpoint,
)
from phyai_models.pi.inputs import Observation
from phyai_models.pi.model import Savings

__all__ = [
    "ActionChunk",
    "DeviceBatch",
    "LerobotBatch",
    "NewWeights",
    "Observation",
    "PI0Args",
    "PiConfig",
    "RandomCheckpoint",
    "Savings",
    "load",
]


@attrs.frozen
class PI0Args(PiArgs):
    __doc__ = PiArgs.__doc__


def load(args: PI0Args, host: Host) -> HostedPi:
    """Load the π0 checkpoint that ``args`` name onto the engine's device."""
    return HostedPi("pi0", args, host)
