"""No argument is dropped: where another value gives another result, the kernel's result is that other one."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from phyai.testing.case import VALUES, Case
from phyai.testing.checks.check import Check
from phyai.testing.subject import Finding, NotApplicable, Subject, results

#: Attributes' values tried per call: the rest have their turn in other calls.
_TRIED = 6


def honoured(subject: Subject, case: Case) -> None:
    """Every attribute and optional tensor that this call can have otherwise."""
    shown = 0
    for fact, other in _variants(subject, case):
        shown += _matters(subject, case, other, fact)
    if not shown:
        raise NotApplicable("no argument of this call can be another inside the capability and matter")


def _variants(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """Claimed calls that differ from ``case`` in one argument, and in nothing that changes a shape."""
    space, op = subject.space, subject.op
    optional = [f"dtype.{t.name}" for t in op.tensors if t.optional]
    for fact in (*(f"attrs.{a.name}" for a in op.attributes), *optional):
        kind, _, name = fact.partition(".")
        now = case.attrs.get(name, _default(subject, name)) if kind == "attrs" else case.dtypes.get(name)
        values = space.values(fact) if kind == "attrs" else (None,) if now else (_main(subject, case, name),)
        tried = 0
        for value in values:
            if value == now or tried >= _TRIED:
                continue
            other = space.set(case, fact, value)
            if other.dims == case.dims and _same_other(case, other, fact) and space.holds(other):
                tried += 1
                yield fact, other


def _matters(subject: Subject, case: Case, other: Case, fact: str) -> bool:
    """Whether the argument matters to the reference for some values of the inputs; it must to the kernel then."""
    for values in VALUES[:2]:
        one = subject.call(attrs.evolve(case, values=values))
        two = subject.call(attrs.evolve(other, values=values))
        want_one, want_two = subject.wanted(one), subject.wanted(two)
        if len(want_one) != len(want_two) or any(a.shape != b.shape for a, b in zip(want_one, want_two, strict=True)):
            return False
        if subject.difference(two, want_one, want_two) is None:
            continue
        got = results(two, subject.site(two).run(two))
        problem = subject.difference(two, got, want_two)
        if problem is None:
            return True
        if subject.difference(two, got, want_one) is None:
            now, before = _shown(subject, other, fact), _shown(subject, case, fact)
            raise Finding(f"{fact} is ignored: with {now} it still computes {before}")
        raise Finding(f"with {_shown(subject, other, fact)} instead of {_shown(subject, case, fact)}: {problem}")
    return False


def _same_other(case: Case, other: Case, fact: str) -> bool:
    """Whether nothing else changed with the argument."""
    kind, _, name = fact.partition(".")
    if kind == "attrs":
        rest = [{n: v for n, v in c.attrs.items() if n != name} for c in (case, other)]
        return rest[0] == rest[1] and other.dtypes == case.dtypes
    rest = [{n: v for n, v in c.dtypes.items() if n != name} for c in (case, other)]
    return rest[0] == rest[1] and other.attrs == case.attrs


def _shown(subject: Subject, case: Case, fact: str) -> str:
    kind, _, name = fact.partition(".")
    if kind == "attrs":
        return f"{name}={case.attrs.get(name, _default(subject, name))}"
    return f"{name} {'given' if name in case.dtypes else 'absent'}"


def _default(subject: Subject, name: str) -> object:
    return next(a.default for a in subject.op.attributes if a.name == name)


def _main(subject: Subject, case: Case, name: str) -> str:
    """The dtype of an optional tensor that is not there yet."""
    allowed = next(t.dtypes for t in subject.op.tensors if t.name == name)
    return next((d for d in case.dtypes.values() if d in allowed), allowed[0])


HONOURED = Check("arguments", "drops no argument", honoured)
