"""Deciding calls of the tiny world."""

from __future__ import annotations

import pytest
from fake_calls import GPU, catalog, facts, policy
from phyai.decision import Decision
from phyai.errors import NoKernelError
from phyai.kernel import Band, Numerics
from phyai.resolver import resolve

SLOPPY = Numerics(reproducible=False)
OPT, REF = Band.OPTIMIZED, Band.REFERENCE


def decide(kernels, rules=(), call=None, env=GPU, failed=None, **defaults) -> Decision:
    return resolve(call or facts(), catalog(*kernels), policy(*rules, **defaults), env, failed=failed or {})


def refused(kernels, rules=(), call=None, error=NoKernelError, **defaults):
    with pytest.raises(error) as caught:
        decide(kernels, rules, call, **defaults)
    return caught.value


def order(decision: Decision) -> list[str]:
    return [c.kernel for c in decision.accepted]


def verdict(decision: Decision, id: str):
    return next(c for c in decision.candidates if c.kernel == id)
