"""The record of one check."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from phyai.testing.case import Case
from phyai.testing.subject import Subject


def always(_: Subject) -> str | None:
    """Every kernel can be checked."""
    return None


@attrs.frozen
class Check:
    """One check; see :mod:`phyai.testing.checks`. ``doc`` completes "the kernel …"."""

    name: str
    doc: str
    run: Callable[[Subject, Case], None] = attrs.field(repr=False)
    unavailable: Callable[[Subject], str | None] = attrs.field(default=always, repr=False)


def needs_cuda(subject: Subject) -> str | None:
    """For what only a GPU can show."""
    return None if subject.environment.device.type == "cuda" else "no GPU"
