"""Every check of a call, in the order in which they are made."""

from __future__ import annotations

from phyai.testing.checks.arguments import HONOURED
from phyai.testing.checks.check import Check
from phyai.testing.checks.graphs import CAPTURED, STREAMED
from phyai.testing.checks.promises import BATCH_INVARIANT, REPRODUCIBLE
from phyai.testing.checks.refusals import REFUSED
from phyai.testing.checks.state import PLANNED, REFRESHED
from phyai.testing.checks.values import AGAIN, AGREES

#: The check that every call is given.
VALUES_CHECK = AGREES
CHECKS: tuple[Check, ...] = (
    AGREES, AGAIN, HONOURED, REFUSED, REPRODUCIBLE, BATCH_INVARIANT, PLANNED, REFRESHED, CAPTURED, STREAMED,
)  # fmt: skip
