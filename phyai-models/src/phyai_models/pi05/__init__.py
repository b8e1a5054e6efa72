"""π0.5."""

from __future__ import annotations

import attrs
from phyai.engine import Host

from phyai_models.pi.hosted import ActionChunk, HostedPi, LerobotBatch, PiArgs
from phyai_models.pi.inputs import Observation
from phyai_models.pi.model import Savings

__all__ = ["ActionChunk", "LerobotBatch", "Observation", "PI05Args", "Savings", "load"]


@attrs.frozen
class PI05Args(PiArgs):
    __doc__ = PiArgs.__doc__


def load(args: PI05Args, host: Host) -> HostedPi:
    """Load the π0.5 checkpoint that ``args`` name onto the engine's device."""
    return HostedPi("pi05", args, host)
