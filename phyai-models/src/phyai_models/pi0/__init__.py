"""π0."""

from __future__ import annotations

import attrs
from phyai.engine import Host

from phyai_models.pi.hosted import ActionChunk, HostedPi, LerobotBatch, PiArgs
from phyai_models.pi.inputs import Observation
from phyai_models.pi.model import Savings

__all__ = ["ActionChunk", "LerobotBatch", "Observation", "PI0Args", "Savings", "load"]


@attrs.frozen
class PI0Args(PiArgs):
    __doc__ = PiArgs.__doc__


def load(args: PI0Args, host: Host) -> HostedPi:
    """Load the π0 checkpoint that ``args`` name onto the engine's device."""
    return HostedPi("pi0", args, host)
