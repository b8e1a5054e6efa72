"""Calls from inside a capability: its corners one by one, and whatever hypothesis draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from phyai.testing.case import MEMORY, VALUES, Case, variadic_dim
from phyai.testing.space import Choose, Space
from phyai.testing.subject import Subject

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

#: How many facts of a base call a drawn call changes at most.
_CHANGES = 4
_SCHEMES = 40
_BASES = 12


def canonical(subject: Subject) -> Case | None:
    """A small claimed call with a few rows, or None when no claimed call was found."""
    space = subject.space
    for base in _bases(space):
        for dim in (d for d in space.op.dims if d.dynamic):
            widened = space.satisfy(space.set(base, f"shape.{dim.name}", 3), locked=(f"shape.{dim.name}",))
            if widened is not None and _small(space, widened, base):
                return widened
        return base
    return None


def corners(subject: Subject, base: Case) -> Iterator[Case]:
    """Claimed calls at the edges, each once: ``base``, and what differs from it in one respect."""
    seen: list[Case] = []
    for case in _corners(subject, base):
        if case not in seen:
            seen.append(case)
            yield case


def _corners(subject: Subject, base: Case) -> Iterator[Case]:
    space = subject.space
    yield base
    yield from _forms(subject, base)
    for fact in space.knobs:
        if not fact.startswith("shape."):
            yield from _each(space, base, fact)
    yield from _schemes(space, base)
    for fact in space.knobs:
        if fact.startswith("shape."):
            yield from _extremes(space, base, fact)
    for param in subject.kernel.params:
        for value in param.values or ():
            yield attrs.evolve(base, params={param.name: value})
    yield from _bases(space)


def _bases(space: Space) -> Iterator[Case]:
    """The op's own argument specs, as near as the capability allows."""
    for base in space.bases:
        case = space.satisfy(base)
        if case is not None:
            yield case


def _forms(subject: Subject, base: Case) -> Iterator[Case]:
    for memory in MEMORY[1:]:
        yield attrs.evolve(base, memory=memory)
    for values in VALUES[1:]:
        yield attrs.evolve(base, values=values)
    yield attrs.evolve(base, alias=True)
    yield from (case for case in _leads(subject.space, base) if subject.space.holds(case))


def _leads(space: Space, base: Case) -> Iterator[Case]:
    """Two leading dimensions, and none."""
    dim = variadic_dim(space.op)
    if dim is None:
        return
    for size, lead in ((6, (2, 3)), (1, ())):
        case = space.set(base, f"shape.{dim}", size)
        if case.dims.get(dim) == math.prod(lead):
            yield attrs.evolve(case, lead=lead)


def _each(space: Space, base: Case, fact: str) -> Iterator[Case]:
    """Every value of a dtype or an attribute that the capability takes."""
    for value in space.values(fact):
        case = space.satisfy(space.set(base, fact, value), locked=(fact,))
        if case is not None:
            yield case


def _extremes(space: Space, base: Case, fact: str) -> Iterator[Case]:
    """The smallest and the largest size, and those at which the capability changes its mind."""
    name = fact.removeprefix("shape.")
    if name not in base.dims:
        return
    accepted: list[Case] = []
    for size in space.values(fact):
        case = space.satisfy(space.set(base, fact, size), locked=(fact,))
        if case is not None and case.dims.get(name) == size and _small(space, case, base):
            accepted.append(case)
    if not accepted:
        return
    yield accepted[0]
    yield accepted[-1]
    spoken = {v for literal in space.when.literals() if literal.fact == fact for v in _near(literal)}
    for case in accepted[1:-1]:
        if case.dims[name] in spoken:
            yield case


def _near(literal: Any) -> Iterable[int]:
    from phyai.testing.values import interesting

    return [v for v in interesting([literal]) if isinstance(v, int)]


def _schemes(space: Space, base: Case) -> Iterator[Case]:
    """One call for every kind of scheme: element type, granularity, zero point, and what the input becomes."""
    if base.scheme is None:
        return
    kinds = set()
    for scheme, _ in space.schemes:
        w, a = scheme.weight, scheme.input
        kind = (w.dtype, w.granularity, w.zero_point, w.g_idx, scheme.pre_scale, a and (a.dtype, a.granularity))
        if kind in kinds:
            continue
        case = base.quantized(space.op, scheme, base.layout)
        if space.holds(case):
            kinds.add(kind)
            yield case
            if len(kinds) >= _SCHEMES:
                return


def _small(space: Space, case: Case, base: Case) -> bool:
    return space.cost(case) <= max(space.elements, space.cost(base))


def drawn(subject: Subject) -> SearchStrategy[Case]:
    """Claimed calls: a base, a few of its facts changed, and the rest made to fit.

    Raises:
        ModuleNotFoundError: hypothesis is not installed (the extra ``testing``).
    """
    from hypothesis import strategies as st

    space = subject.space
    bases = tuple(itertools.islice(_bases(space), _BASES))
    knobs = tuple(fact for fact in space.knobs if len(space.values(fact)) > 1)

    @st.composite
    def build(draw: Any) -> Case:
        choose: Choose = lambda options: draw(st.sampled_from(options))  # noqa: E731
        base = choose(bases)
        case = base
        changed = draw(st.lists(st.sampled_from(knobs), max_size=_CHANGES, unique=True)) if knobs else []
        for fact in changed:
            case = space.set(case, fact, choose(space.values(fact)))
        # What hypothesis chose stays where that can be; where it cannot, nearly all of it does.
        found = space.satisfy(case, choose, locked=changed) or space.satisfy(case, choose) or base
        if not _small(space, found, base):
            found = base
        return _formed(draw, subject, found)

    return build()


def _formed(draw: Any, subject: Subject, case: Case) -> Case:
    from hypothesis import strategies as st

    params = {
        p.name: draw(st.sampled_from(p.values)) for p in subject.kernel.params if p.values and draw(st.booleans())
    }
    leads = [c.lead for c in _leads_of(subject, case)]
    return attrs.evolve(
        case,
        memory=draw(st.sampled_from(MEMORY)),
        values=draw(st.sampled_from((VALUES[0], *VALUES))),
        alias=draw(st.sampled_from((False, False, True))),
        lead=draw(st.sampled_from((None, *leads))),
        params=params,
        seed=draw(st.integers(0, 999)),
    )


def _leads_of(subject: Subject, case: Case) -> Iterator[Case]:
    """Other ways to write the leading dimension's size."""
    dim = variadic_dim(subject.op)
    size = case.dims.get(dim or "")
    if size is None:
        return
    ways: list[tuple[int, ...]] = [(size, 1), (1, size)]
    ways += [(2, size // 2)] if size % 2 == 0 else []
    ways += [()] if size == 1 else []
    yield from (attrs.evolve(case, lead=way) for way in ways)
