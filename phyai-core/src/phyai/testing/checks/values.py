"""Right numbers, all of them written, nothing else touched."""

from __future__ import annotations

from typing import Any

import attrs

from phyai.targets import load as load_target
from phyai.testing.bench import Call
from phyai.testing.case import Case
from phyai.testing.checks.check import Check
from phyai.testing.memory import same_bits, unwritten
from phyai.testing.subject import (
    Bound,
    Finding,
    NotApplicable,
    Subject,
    as_out,
    places,
    result_names,
    results,
)  # fmt: skip


def compute(subject: Subject, bound: Bound, call: Call, want: list[Any], what: str = "") -> list[Any]:
    """Run a call into poisoned outputs and compare it with ``want``; the outputs, then the mutated inputs.

    Raises:
        Finding: an output is wrong, not written everywhere, or something else was written.
    """
    before = call.copy()
    placed = places(call, want)
    returned = bound.run(call, out=as_out(placed))
    got = [*(p.tensor for p in placed), *(call.inputs[name] for name in call.mutated)]
    for name, g, w in zip(result_names(call), got, want, strict=True):
        if name not in call.mutated and w.is_floating_point() and bool((unwritten(g) & ~w.isnan()).any()):
            count = int((unwritten(g) & ~w.isnan()).sum())
            raise Finding(f"{what}{name} is not written everywhere: {count} of {g.numel()} elements keep what out held")
    subject.check(call, got, want, what)
    for name, p in zip((t.name for t in call.op.outputs), placed, strict=False):
        if p.overrun():
            raise Finding(f"{what}writes outside {name}")
    _same_result(call, results(call, returned), got, what)
    _untouched(call, before, what)
    return got


def _same_result(call: Call, returned: list[Any], got: list[Any], what: str) -> None:
    for name, r, g in zip(result_names(call), returned, got, strict=True):
        if not same_bits(r, g):
            raise Finding(f"{what}run returns another {name} than it wrote to out")


def _untouched(call: Call, before: Call, what: str) -> None:
    for declared in call.op.inputs:
        name = declared.name
        now, then = call.inputs[name], before.inputs[name]
        if now is None or name in call.mutated:
            continue
        if declared.scratch is not None:
            mask = load_target(declared.scratch)(before.inputs)
            now, then = now.masked_fill(mask, 0), then.masked_fill(mask, 0)
        if not same_bits(now, then):
            where = " outside its scratch" if declared.scratch is not None else ""
            raise Finding(f"{what}changes its input {name}{where}, which the signature does not let it mutate")


def agrees(subject: Subject, case: Case) -> None:
    """With outputs given and without, as the reference has it in float64."""
    call = subject.call(case)
    want = subject.wanted(call)
    bound = subject.site(call)
    fresh = call.copy()
    compute(subject, bound, call, want)
    returned = results(fresh, bound.run(fresh))
    for name, g in zip((t.name for t in call.op.outputs), returned, strict=False):
        declared = _dtype_of(case, name)
        if g.dtype != declared:
            raise Finding(f"without out, {name} has dtype {g.dtype}; the call says {declared}")
    subject.check(fresh, returned, want, "without out, ")


def again(subject: Subject, case: Case) -> None:
    """Calls at one site, of one size, of another, and of the first again: nothing of one stays in the next."""
    other = _resized(subject, case)
    if other is None:
        raise NotApplicable("no call of another size is claimed")
    first = subject.call(case)
    bound = subject.site(first)
    calls = [first, subject.call(other, seed=case.seed + 1), subject.call(case, seed=case.seed + 2)]
    for number, call in enumerate(calls):
        call = attrs.evolve(call, weights=first.weights, plain=first.plain)
        what = f"after a call with {_dims(calls[number - 1].case)}, " if number else ""
        compute(subject, bound, call, subject.wanted(call), what)


def _resized(subject: Subject, case: Case) -> Case | None:
    """A claimed call that differs in dynamic dimensions only."""
    space, op = subject.space, subject.op
    static = {d.name: case.dims.get(d.name) for d in op.dims if not d.dynamic}
    for dim in op.dims:
        if not dim.dynamic or dim.name not in case.dims:
            continue
        for size in (case.dims[dim.name] + 3, 2, 1, 16, 5):
            if size == case.dims[dim.name] or size < dim.minimum:
                continue
            other = attrs.evolve(space.set(case, f"shape.{dim.name}", size), lead=None)
            same = {name: other.dims.get(name) for name in static} == static and other.attrs == case.attrs
            if same and other.dims != case.dims and space.holds(other):
                return other
    return None


def _dims(case: Case) -> str:
    return ", ".join(f"{name}={size}" for name, size in case.dims.items())


def _dtype_of(case: Case, name: str) -> Any:
    from phyai.synthesize import torch_dtype

    return torch_dtype(case.dtypes[name])


AGREES = Check("values", "gives the reference's numbers, writes all of out and nothing else", agrees)
AGAIN = Check("reuse", "keeps nothing of one call for the next", again)
