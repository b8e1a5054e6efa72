"""Making a failing call small: one change at a time, as long as it still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from phyai.testing.case import Case
from phyai.testing.space import Space

_PLAIN: dict[str, Any] = {"memory": "dense", "values": "normal", "alias": False, "lead": None, "seed": 0}


def shrink(case: Case, fails: Callable[[Case], bool], space: Space, seconds: float) -> Case:
    """The smallest claimed call found within ``seconds`` for which ``fails`` still holds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for simpler in _simpler(case, space):
            if time.monotonic() >= deadline:
                return case
            if space.holds(simpler) and fails(simpler):
                case = simpler
                break
        else:
            return case
    return case


def _simpler(case: Case, space: Space) -> Iterator[Case]:
    """Claimed calls that are simpler in one respect, the greatest simplifications first."""
    for name, value in _PLAIN.items():
        if getattr(case, name) != value:
            yield attrs.evolve(case, **{name: value})
    if case.params:
        yield attrs.evolve(case, params={})
    for attribute in space.op.attributes:
        if case.attrs.get(attribute.name, attribute.default) != attribute.default:
            yield space.set(case, f"attrs.{attribute.name}", attribute.default)
    for name in case.present:
        yield space.set(case, f"dtype.{name}", None)
    for dim in space.op.dims:
        size = case.dims.get(dim.name)
        if size is None:
            continue
        for smaller in space.values(f"shape.{dim.name}"):
            if smaller >= size:
                break
            candidate = space.set(case, f"shape.{dim.name}", smaller)
            if space.cost(candidate) < space.cost(case):
                yield candidate
