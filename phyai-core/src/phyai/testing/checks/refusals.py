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
    watched, entered = subject.watched
    space = subject.space
    entered.clear()
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
            raise Finding(f"a call that is not claimed runs: {subject.kernel.when.why_not(space.facts(other) or {})}")
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
            if _unclaimed(subject, other):
                yield fact, other
                break
    for scheme in (None, *(scheme for scheme, _ in space.schemes[:: max(1, len(space.schemes) // 50)])):
        if not any("quant." in name for name in subject.kernel.when.facts):
            return
        other = case.quantized(space.op, scheme, None if scheme is None else "plain")
        if other != case and _unclaimed(subject, other):
            yield "quant.scheme", other


def _unclaimed(subject: Subject, case: Case) -> bool:
    """Whether there is such a call, and the kernel does not claim it."""
    facts = subject.space.facts(case)
    if facts is None or subject.space.cost(case) > subject.space.elements:
        return False
    return not subject.kernel.when.holds(facts)


REFUSED = Check("refusal", "is not entered for a call that it does not claim", refused)
