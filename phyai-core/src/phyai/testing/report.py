"""What a run of the kit found: per kernel and check, as plain data and as JSON."""

from __future__ import annotations

import enum
import json
import shlex
from collections.abc import Mapping
from typing import Any

import attrs


class Outcome(enum.Enum):
    """How a check, or a kernel, fared."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@attrs.frozen
class CheckReport:
    """One check of one kernel. ``calls`` counts those that it could say something about; ``reason`` is why it was
    skipped, or what is wrong; ``call`` is the smallest call that shows it, and ``line`` the command that runs it."""

    name: str
    outcome: Outcome
    calls: int = 0
    reason: str = ""
    call: Mapping[str, Any] | None = None
    line: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**attrs.asdict(self), "outcome": self.outcome.value}


@attrs.frozen
class SubjectReport:
    """One kernel (or quantization format, or plug-in): its checks. ``reason`` says why none could be made."""

    name: str
    kind: str
    checks: tuple[CheckReport, ...] = ()
    reason: str = ""

    @property
    def outcome(self) -> Outcome:
        """Failed when a check is, or when nothing was exercised and no other machine is needed for it."""
        if any(check.outcome is Outcome.FAILED for check in self.checks):
            return Outcome.FAILED
        if any(check.outcome is Outcome.PASSED for check in self.checks):
            return Outcome.PASSED
        return Outcome.SKIPPED

    @property
    def calls(self) -> int:
        return sum(check.calls for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "outcome": self.outcome.value,
            "calls": self.calls,
            "reason": self.reason,
            "checks": [check.to_json() for check in self.checks],
        }


@attrs.frozen
class Report:
    """A run. ``waiting`` names what was not reached yet where it goes on, or was ended from outside; the first of them
    is the one that was being tested."""

    backend: str
    device: str
    seed: int
    subjects: tuple[SubjectReport, ...]
    seconds: float = 0.0
    waiting: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing failed, something was exercised, and everything was reached."""
        outcomes = [subject.outcome for subject in self.subjects]
        return Outcome.FAILED not in outcomes and Outcome.PASSED in outcomes and not self.waiting

    def failures(self) -> list[tuple[SubjectReport, CheckReport]]:
        return [(s, c) for s in self.subjects for c in s.checks if c.outcome is Outcome.FAILED]

    def skipped(self) -> list[SubjectReport]:
        """The kernels and formats that this machine could not run at all."""
        return [s for s in self.subjects if s.outcome is Outcome.SKIPPED and s.kind != "plug-in"]

    def reasons(self) -> dict[str, list[str]]:
        """Why something was not checked, with the names of what was not."""
        found: dict[str, list[str]] = {}
        for subject in self.subjects:
            if subject.reason and subject.outcome is Outcome.SKIPPED:
                found.setdefault(subject.reason, []).append(subject.name)
            else:
                for check in subject.checks:
                    if check.outcome is Outcome.SKIPPED:
                        found.setdefault(f"{check.name}: {check.reason}", []).append(subject.name)
        return found

    def counts(self) -> dict[str, int]:
        """How many of what was tested fared how."""
        return {o.value: sum(subject.outcome is o for subject in self.subjects) for o in Outcome}

    def to_json(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "device": self.device,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "passed": self.passed,
            "waiting": list(self.waiting),
            "subjects": [subject.to_json() for subject in self.subjects],
        }


def reproduction(backend: str, kernel: str, check: str, call: Mapping[str, Any], device: str) -> str:
    """The command line that runs one check of one call again."""
    parts = ["phyai", "conformance", backend, "--kernel", kernel, "--check", check]
    if device != "cpu":
        parts += ["--device", device]
    return shlex.join([*parts, "--call", json.dumps(call, separators=(",", ":"))])
