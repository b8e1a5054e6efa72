"""Which kernel is chosen over a grid of calls, and by how much it is ahead: from timings, or from declarations alone.

>>> parse_grid("M=1..16,layer")
(Axis(name='M', sizes=(1, 2, 4, 8, 16)), Axis(name='layer', sizes=()))
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from phyai.calls import with_derived
from phyai.catalog import Catalog
from phyai.dispatch.reader import input_dims
from phyai.environment import Environment
from phyai.errors import CallError, NoKernelError
from phyai.facts import Facts, FactValue
from phyai.op import Op
from phyai.policy import Policy
from phyai.resolver import in_short, resolve
from phyai.tune.compare import lead
from phyai.tune.key import CallKey
from phyai.tune.layer import TuningLayer, facts_of
from phyai.tune.task import op_tasks

LAYER = "layer"
_MOST_CELLS = 20_000
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


@attrs.frozen
class Axis:
    """One axis: the sizes of a dimension, or ``layer`` (the op's calls in known models, or those measured)."""

    name: str
    sizes: tuple[int, ...] = ()


@attrs.frozen
class Cell:
    """One call: the kernel, why, and how many times faster it is than the second best (None: not measured)."""

    kernel: str | None
    why: str
    ahead: float | None = None


@attrs.frozen
class DecisionMap:
    """Cells by row, then column."""

    op: str
    title: str
    columns: Axis
    row_name: str
    rows: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]

    @property
    def kernels(self) -> tuple[str, ...]:
        """Every kernel that is chosen somewhere, those of most cells first."""
        counts: dict[str, int] = {}
        for row in self.cells:
            for cell in row:
                if cell.kernel is not None:
                    counts[cell.kernel] = counts.get(cell.kernel, 0) + 1
        return tuple(sorted(counts, key=lambda id: (-counts[id], id)))

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "title": self.title,
            self.columns.name: list(self.columns.sizes),
            self.row_name: list(self.rows),
            "cells": [[attrs.asdict(cell) for cell in row] for row in self.cells],
        }


def parse_grid(text: str) -> tuple[Axis, Axis]:
    """Two axes, ``NAME=LO..HI`` (LO, HI and the powers of two between), ``NAME=1|50|968`` or ``layer``, by a comma.

    The second is ``layer`` where it is not given.

    Raises:
        CallError: the text is no such thing.
    """
    axes = [_axis(part.strip()) for part in text.split(",")]
    if len(axes) == 1:
        axes.append(Axis(LAYER))
    first, *others = axes
    if not first.sizes or len(others) != 1 or others[0].name == first.name:
        raise CallError(
            f"--grid {text!r}: give a dimension, and another or `layer`: M=1..4096,layer or M=1..64,N=16|32"
        )
    return first, others[0]


def _axis(text: str) -> Axis:
    name, equals, sizes = text.partition("=")
    if not equals and name == LAYER:
        return Axis(LAYER)
    interval = _RANGE.fullmatch(sizes)
    if interval is not None:
        low, high = map(int, interval.groups())
        if 0 < low <= high < 1 << 40:
            powers = {1 << n for n in range(41) if low < 1 << n < high}
            return Axis(name, tuple(sorted({low, *powers, high})))
    elif name and sizes and all(size.isdecimal() and int(size) > 0 for size in sizes.split("|")):
        return Axis(name, tuple(int(size) for size in sizes.split("|")))
    raise CallError(f"{text!r} is no axis; give NAME=LO..HI, NAME=1|50|968 or layer")


def decision_map(
    op_name: str,
    grid: tuple[Axis, Axis],
    catalog: Catalog,
    policy: Policy,
    environment: Environment,
    *,
    layer: TuningLayer | None = None,
    capture: bool = False,
) -> DecisionMap:
    """Decide every call of the grid under ``policy``; with ``layer``, under its timings too.

    Raises:
        CallError: a dimension that the op does not have or that its weights fix, or a grid without end.
    """
    op = catalog.op(op_name)
    columns, second = grid
    for axis in grid:
        _check(op, axis)
    calls = _measured(op, layer, environment) if layer is not None else _known(op, catalog, environment, capture)
    if second.name != LAYER:
        facts = next(iter(calls.values()))
        calls = {f"{second.name}={size}": _resized(op, facts, second.name, size) for size in second.sizes}
    if len(calls) * len(columns.sizes) > _MOST_CELLS:
        raise CallError(f"a grid of {len(calls)} × {len(columns.sizes)} calls; at most {_MOST_CELLS}")
    below = policy if layer is None else layer.onto(policy)
    cells = tuple(
        tuple(
            _cell(_resized(op, facts, columns.name, size), catalog, below, environment, layer) for size in columns.sizes
        )
        for facts in calls.values()
    )
    basis = "measured" if layer is not None else "from declarations alone"
    return DecisionMap(
        op.name, f"{op.name} on {environment.device}, {basis}", columns, second.name, tuple(calls), cells
    )


def _check(op: Op, axis: Axis) -> None:
    known = sorted(input_dims(op) | {d.name for d in op.dims})
    if axis.name != LAYER and axis.name not in known:
        raise CallError(f"{op.name} has no dimension {axis.name!r}; it has: {', '.join(known)}")


def _resized(op: Op, facts: Facts, dim: str, size: int) -> Facts:
    """The same call with another size of one dimension."""
    derived = {spec.name for spec in op.extra_facts}
    kept = {name: value for name, value in facts.items() if name not in derived}
    return with_derived(op, {**kept, f"shape.{dim}": size})


def _known(op: Op, catalog: Catalog, environment: Environment, capture: bool) -> dict[str, Facts]:
    """The op's calls in known models."""
    tasks = op_tasks(op.name, catalog, capture=capture)
    return {task.sites[0]: task.facts(catalog, environment) for task in tasks}


def _measured(op: Op, layer: TuningLayer | None, environment: Environment) -> dict[str, Facts]:
    """A call of each measured family: what differs in dynamic dimensions only is one.

    Raises:
        CallError: nothing was measured.
    """
    found: dict[str, Facts] = {}
    for chosen in layer.chosen if layer is not None else ():
        m = chosen.measurement
        if m.op == op.name:
            family = CallKey(m.op, _telling(m.facts), {}).text.removeprefix(f"{op.name} ")
            found.setdefault(family, facts_of(m, op, environment))
    if not found:
        raise CallError(f"no measurement of {op.name} counts here; `phyai tune --op {op.name}` measures it")
    return found


def _telling(facts: Mapping[str, FactValue | None]) -> dict[str, FactValue | None]:
    """The facts that people tell calls apart by."""
    return {n: v for n, v in facts.items() if v is not None and n not in ("mode.capture",)}


def _cell(facts: Facts, catalog: Catalog, policy: Policy, environment: Environment, layer: TuningLayer | None) -> Cell:
    try:
        decision = resolve(facts, catalog, policy, environment)
    except NoKernelError as error:
        return Cell(None, in_short(error, policy))
    assert decision.kernel is not None
    chosen = layer.of(CallKey.of(facts, catalog).text) if layer is not None else None
    ahead = None
    if chosen is not None and chosen.choice.winner == decision.kernel.id:
        ahead = lead(chosen.measurement, chosen.choice)[0]
    return Cell(decision.kernel.id, decision.why(), ahead)
