"""Running the checks: corners first, then what hypothesis draws, until the time is up."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence

import attrs

from phyai.composite import is_decomposition
from phyai.decision import Decision, Stage
from phyai.errors import NoKernelError, PhyAIError
from phyai.testing.case import Case
from phyai.testing.checks import CHECKS, VALUES_CHECK, Check
from phyai.testing.draw import canonical, corners, drawn
from phyai.testing.report import CheckReport, Outcome, SubjectReport, reproduction
from phyai.testing.shrink import shrink
from phyai.testing.subject import Finding, NotApplicable, Subject

#: Calls that hypothesis draws for one kernel, at most.
CALLS = 100
#: Calls that it draws at once.
_ROUND = 20
#: How long a failing call is made smaller, at most.
SHRINK_SECONDS = 5.0
#: Why a check that applies says nothing: the calls before it took too long, or broke the device.
NOT_MADE = "no call of it was made in the time"


@attrs.define(eq=False)
class _Tally:
    """How one check of one kernel is faring."""

    check: Check
    calls: int = 0
    reasons: dict[str, None] = attrs.field(factory=dict)
    failure: tuple[Case, str] | None = None


class _DeviceFailed(BaseException):
    """A call broke the device's context: nothing more can run in this process. (hypothesis lets it through.)"""


def examine(
    subject: Subject,
    *,
    seconds: float,
    seed: int = 0,
    calls: int = CALLS,
    checks: Sequence[Check] = CHECKS,
    backend: str | None = None,
    stop: float = math.inf,
) -> SubjectReport:
    """Every check of one kernel, in about ``seconds``. Each is made at least once, with the plainest call; after
    ``stop`` (of :func:`time.monotonic`) nothing else begins.

    Raises:
        DeclarationError: nothing says what the kernel's op is.
        ModuleNotFoundError: hypothesis or torch is not installed.
    """
    deadline = min(time.monotonic() + seconds, stop)
    name = backend or subject.kernel.backend
    if _device_failed(subject):
        why = "not tried: the device has failed in a kernel before, and answers no more in this process"
        return SubjectReport(subject.kernel.id, "kernel", reason=why)
    if subject.op.chained and is_decomposition(subject.kernel):
        why = "it runs the call sites that its caller chains: those have kernels of their own"
        return SubjectReport(subject.kernel.id, "kernel", reason=why)
    if not subject.space.reachable:
        return SubjectReport(subject.kernel.id, "kernel", reason=_elsewhere(subject))
    base = canonical(subject)
    if base is None:
        why = "no call inside its capability was found, so nothing was exercised: is there one at all?"
        return SubjectReport(
            subject.kernel.id, "kernel", (CheckReport("exercised", Outcome.FAILED, reason=why),), reason=why
        )
    tallies = [_Tally(check) for check in checks if check.unavailable(subject) is None]
    values = [tally for tally in tallies if tally.check is VALUES_CHECK]
    with contextlib.suppress(_DeviceFailed):
        _try(subject, [base], tallies, None)
        _try(subject, corners(subject, base), values or tallies, deadline - seconds / 2, stop)
        _draw(subject, tallies, deadline, seed, calls, stop)
        _insist(subject, base, tallies, min(deadline + seconds / 2, stop))
    reports = [_report(subject, tally, name, _shrinking(stop)) for tally in tallies]
    skipped = [
        CheckReport(check.name, Outcome.SKIPPED, reason=reason)
        for check in checks
        if (reason := check.unavailable(subject)) is not None
    ]
    return SubjectReport(subject.kernel.id, "kernel", (*reports, *skipped))


def examine_call(
    subject: Subject, case: Case, checks: Sequence[Check] = CHECKS, backend: str | None = None
) -> SubjectReport:
    """Every check of one kernel with one call.

    Raises:
        PhyAIError: the kernel does not claim the call; the message says why.
    """
    facts = subject.space.facts(case)
    if facts is None or not subject.kernel.when.holds(facts):
        why = "its arguments do not agree" if facts is None else subject.kernel.when.why_not(facts)
        raise PhyAIError(f"{subject.kernel.id} does not claim this call: {why}")
    tallies = [_Tally(check) for check in checks if check.unavailable(subject) is None]
    with contextlib.suppress(_DeviceFailed):
        _try(subject, [case], tallies, None)
    name = backend or subject.kernel.backend
    reports = tuple(_report(subject, tally, name, 0.0) for tally in tallies)
    return SubjectReport(subject.kernel.id, "kernel", reports)


def _try(
    subject: Subject, cases: Iterable[Case], tallies: Sequence[_Tally], deadline: float | None, stop: float = math.inf
) -> None:
    for case in cases:
        for tally in tallies:
            if time.monotonic() >= stop:
                return
            if tally.failure is None:
                _one(subject, case, tally)
        if deadline is not None and time.monotonic() >= deadline:
            return


def _one(subject: Subject, case: Case, tally: _Tally) -> None:
    try:
        tally.check.run(subject, case)
    except NotApplicable as why:
        tally.reasons.setdefault(str(why))
    except Exception as error:
        tally.calls += 1
        tally.failure = (case, _words(error))
        if _device_failed(subject):
            raise _DeviceFailed from error
    else:
        tally.calls += 1


def _draw(
    subject: Subject, tallies: Sequence[_Tally], deadline: float, seed: int, calls: int, stop: float
) -> None:  # fmt: skip
    """Calls that hypothesis draws, in rounds between which the time is looked at."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    strategy = drawn(subject)
    for number, start in enumerate(range(0, calls, _ROUND)):
        if time.monotonic() >= deadline:
            return

        @seeded(seed * 1000 + number)
        @settings(
            max_examples=min(_ROUND, calls - start),
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def run(case: Case) -> None:
            if time.monotonic() < deadline:
                _try(subject, [case], tallies, None, stop)

        run()


def _insist(subject: Subject, base: Case, tallies: Sequence[_Tally], deadline: float) -> None:
    """Look among the corners for a call that a check says something about, where none has come up."""
    silent = [tally for tally in tallies if not tally.calls]
    for case in corners(subject, base) if silent else ():
        for tally in silent:
            if time.monotonic() >= deadline or all(t.calls for t in silent):
                return
            if not tally.calls:
                _one(subject, case, tally)


def _shrinking(stop: float) -> float:
    """How long a failing call may be made smaller: a part of the time that is left, so that other kernels have some."""
    return min(SHRINK_SECONDS, max(1.0, (stop - time.monotonic()) / 4))


def _report(subject: Subject, tally: _Tally, backend: str, seconds: float) -> CheckReport:
    """What a check found; a failing call is made smaller for so many ``seconds``."""
    if tally.failure is None:
        if tally.calls:
            return CheckReport(tally.check.name, Outcome.PASSED, tally.calls)
        return CheckReport(tally.check.name, Outcome.SKIPPED, reason="; ".join(tally.reasons) or NOT_MADE)
    case, words = tally.failure
    if seconds > 0 and not _device_failed(subject):
        case, words = _smallest(subject, tally.check, case, words, seconds)
    call = case.to_json(subject.op)
    line = reproduction(backend, subject.kernel.id, tally.check.name, call, subject.device)
    return CheckReport(tally.check.name, Outcome.FAILED, tally.calls, words, call, line)


def _smallest(subject: Subject, check: Check, case: Case, words: str, seconds: float) -> tuple[Case, str]:
    last = [words]

    def fails(candidate: Case) -> bool:
        try:
            check.run(subject, candidate)
        except NotApplicable:
            return False
        except Exception as error:
            last[0] = _words(error)
            return True
        return False

    small = shrink(case, fails, subject.space, seconds)
    return small, last[0]


def _device_failed(subject: Subject) -> bool:
    """Whether an earlier call has left the GPU's context unusable."""
    if subject.environment.device.type != "cuda":
        return False
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _words(error: Exception) -> str:
    if isinstance(error, Finding):
        return str(error)
    if isinstance(error, NoKernelError) and isinstance(error.decision, Decision):
        failed = [r.reason for r in error.decision.rejected if r.stage is Stage.PREPARE]
        if failed:
            return failed[0]
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _elsewhere(subject: Subject) -> str:
    """What this machine lacks."""
    facts = subject.space.fixed
    about = ("device.", "lib.")
    asked = [literal for literal in subject.kernel.when.literals() if literal.fact.startswith(about)]
    reasons = [reason for literal in asked for reason in literal.reasons(facts)]
    return "not on this machine: " + ("; ".join(dict.fromkeys(reasons)) or "its capability holds for no call")
