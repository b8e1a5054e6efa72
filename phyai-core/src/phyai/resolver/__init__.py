"""The resolver: one pure function from what is known to a decision.

Dispatch, ``phyai explain`` and lint all call :func:`resolve`; nothing else chooses kernels.
"""

from phyai.resolver.decide import reads, resolve
from phyai.resolver.failure import in_short
from phyai.resolver.ordering import BANDS, CAPABILITY, RANKS, TIES

__all__ = ["BANDS", "CAPABILITY", "RANKS", "TIES", "in_short", "reads", "resolve"]
