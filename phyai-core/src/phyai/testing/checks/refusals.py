"""Calls outside the capability are refused before any work."""

from __future__ import annotations

from collections.abc import Iterator

from phyai.errors import PhyAIError
from phyai.testing.case import Case
from phyai.testing.checks.check import Check
from phyai.testing.subject import Finding, NotApplicable, Subject

_TRIED = 8


def refused(subject: Subject, case: Case) -> None:
    """Calls that differ from a claimed one in one fact, pinned to the kernel."""
    entered: list[str] = []
    watched = subject.instrumented(entered.append)
    tried = 0
    for fact, other in _outside(subject, case):
        try:
            call = watched.call(other)
        except Exception:  # no such call can be made: nothing to refuse
            continue
        try:
            watched.site(call).run(call)
        except PhyAIError:
            pass
        else:
            raise Finding(f"a call that is not claimed runs: {subject.kernel.when.why_not(_facts(subject, other))}")
        if entered:
            raise Finding(f"{entered[0]} begins although the call is not claimed (only {fact} differs)")
        tried += 1
        if tried >= _TRIED:
            return
    if not tried:
        raise NotApplicable("every call that differs in one fact is claimed too")


def _outside(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """Calls of the op that the kernel does not claim, one fact away, another fact first for every seed."""
    space = subject.space
    read = sorted(name for name in subject.kernel.when.facts if name in space.knobs)
    start = case.seed % max(1, len(read))
    for fact in (*read[start:], *read[:start]):
        for value in space.values(fact):
            other = space.set(case, fact, value)
            facts = space.facts(other)
            if facts is not None and not subject.kernel.when.holds(facts) and space.cost(other) <= space.elements:
                yield fact, other
                break


def _facts(subject: Subject, case: Case) -> dict[str, object]:
    return dict(subject.space.facts(case) or {})


REFUSED = Check("refusal", "is not entered for a call that it does not claim", refused)
