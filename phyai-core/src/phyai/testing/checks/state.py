"""Plans with changed lengths, and new weights in place."""

from __future__ import annotations

import attrs

from phyai.errors import CallError
from phyai.testing.bench import Call
from phyai.testing.case import Case
from phyai.testing.checks.check import Check
from phyai.testing.checks.values import compute
from phyai.testing.subject import Finding, NotApplicable, Subject


def planned(subject: Subject, case: Case) -> None:
    """Plans of three steps at one site, the third with the lengths of the first again."""
    first = subject.call(case)
    bound = subject.site(first)
    steps = [first, _other_lengths(subject, first), first.copy()]
    for number, step in enumerate(steps):
        what = f"after plan with changed lengths (step {number + 1}), " if number else ""
        compute(subject, bound, step, subject.wanted(step), what)


def _other_lengths(subject: Subject, first: Call) -> Call:
    """The same call with other metadata, drawn with the first seeds that give any."""
    for seed in range(first.case.seed + 1, first.case.seed + 9):
        other = subject.call(first.case, seed=seed)
        if any(not bool((t == first.metadata[name]).all()) for name, t in other.metadata.items()):
            return other
    raise NotApplicable("the metadata of such a call can only be the same")


def refreshed(subject: Subject, case: Case) -> None:
    """New weights of the same shapes, in place."""
    call = subject.call(case)
    if not call.weights:
        raise NotApplicable("the call has no weights")
    bound = subject.site(call)
    old = subject.wanted(call)
    compute(subject, bound, call.copy(), old)
    other = subject.call(case, seed=case.seed + 1)
    try:
        bound.site.refresh(other.weights)
    except CallError as error:
        raise NotApplicable(f"no refresh: {error}") from None
    after = attrs.evolve(call.copy(), weights=other.weights, plain=other.plain)
    want = subject.wanted(after)
    if subject.difference(call, want, old) is None:
        raise NotApplicable("the new weights give the same result")
    try:
        compute(subject, bound, after, want, "after refresh with new weights, ")
    except Finding:
        raise
    except Exception as error:
        raise Finding(f"after refresh with new weights: {type(error).__name__}: {error}") from error


def _without_plan(subject: Subject) -> str | None:
    return None if subject.op.metadata else "the op has no metadata to plan with"


def _without_weights(subject: Subject) -> str | None:
    return None if subject.op.weights else "the op has no weights"


PLANNED = Check("plan", "follows lengths that change from step to step", planned, _without_plan)
REFRESHED = Check("refresh", "takes new weights in place", refreshed, _without_weights)
