"""Remembering decisions: the key holds what a decision can depend on, and nothing else.

A call's *cell* is the truth of every literal that a candidate's or a rule's predicate reads of a fact that is open at
the site (not known when it was bound). Two calls in one cell get one decision. Where the winner prepares
differently for some dynamic facts (``specializes_on``), their values tell its entries apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from phyai.catalog import Catalog
from phyai.composite import part_facts
from phyai.decision import Decision
from phyai.dispatch.reader import input_dims
from phyai.facts import Facts, FactValue
from phyai.kernel import Kernel, Prepared
from phyai.op import Op, Part
from phyai.policy import Policy
from phyai.predicates import Literal, MemoKey
from phyai.resolver import reads

if TYPE_CHECKING:
    from phyai.dispatch.site import Site


def open_facts(op: Op, static: Mapping[str, FactValue]) -> frozenset[str]:
    """Names of the facts that a call may add to ``static``: dimensions that inputs carry, and derived facts."""
    from_inputs = {f"shape.{name}" for name in input_dims(op)}
    derived = {spec.name for spec in op.extra_facts}
    return frozenset(name for name in from_inputs | derived if name not in static)


class _Asked(dict[str, int]):
    """Dimensions that are all 1, and remember which were asked for."""

    def __missing__(self, name: str) -> int:
        return self.setdefault(name, 1)


def _read(source: str | Callable[[Mapping[str, int]], int]) -> Collection[str]:
    """The dimensions of a composite that one of a part follows from."""
    if isinstance(source, str):
        return (source,)
    asked = _Asked()
    source(asked)
    return asked


class _AllBut:
    """Every name but some: what is known to be absent if it is not known."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name not in self._names


class Cells:
    """The function from a call's facts to its cell, for one site under one policy."""

    def __init__(self, op: Op, static: Facts, catalog: Catalog, policy: Policy) -> None:
        still_open = open_facts(op, static)
        absent = _AllBut(still_open)
        residues = [p.given(static, absent=absent) for p in reads(op, static, catalog, policy)]
        #: What a call can still change: literals over open facts.
        self.literals: frozenset[Literal] = frozenset(literal for p in residues for literal in p.literals())
        self._key = MemoKey.of(residues, dynamic=still_open)  # by thresholds: quick, but finer than need be
        self._truth: dict[tuple[Hashable, ...], tuple[bool, ...]] = {}
        self.parts: tuple[tuple[Part, Op, Cells], ...] = tuple(self._parts(op, static, catalog, policy))
        self._op = op

    @staticmethod
    def _parts(op: Op, static: Facts, catalog: Catalog, policy: Policy) -> list[tuple[Part, Op, Cells]]:
        found = []
        for part in op.parts:
            part_op = catalog.op(part.op)
            cells = Cells(part_op, part_facts(op, part, part_op, static), catalog, policy)
            if cells:
                found.append((part, part_op, cells))
        return found

    def __bool__(self) -> bool:
        """Whether any open fact matters."""
        return bool(self.literals or self.parts)

    def reads(self, still_open: frozenset[str]) -> frozenset[str]:
        """The open facts that matter. Which of them those of a part follow from that are no dimensions is the part's
        affair: all may."""
        if not self.parts:
            return frozenset(literal.fact for literal in self.literals)
        dims = {name for name in still_open if name.startswith("shape.")}
        return (still_open - dims) | {name for name in dims if self.tells_apart(name.removeprefix("shape."))}

    def tells_apart(self, dim: str) -> bool:
        """Whether a decision, or one of its parts', depends on a dimension. Derived facts may follow from any."""
        derived = {spec.name for spec in self._op.extra_facts}
        if any(literal.fact == f"shape.{dim}" or literal.fact in derived for literal in self.literals):
            return True
        return any(
            cells.tells_apart(inner.name)
            for part, part_op, cells in self.parts
            for inner in part_op.dims
            if dim in _read(part.dims.get(inner.name, inner.name))
        )

    def coarser_than(self, other: Cells) -> bool:
        """Whether calls that ``other`` puts in one cell are in one cell here too."""
        theirs = {part.name: cells for part, _, cells in other.parts}
        return self.literals <= other.literals and all(
            part.name in theirs and cells.coarser_than(theirs[part.name]) for part, _, cells in self.parts
        )

    def __call__(self, facts: Facts) -> tuple[Any, ...]:
        key = self._key(facts)
        truth = self._truth.get(key)
        if truth is None:
            truth = self._truth[key] = tuple(literal.holds(facts) for literal in self.literals)
        return (*truth, *(cells(part_facts(self._op, part, op, facts)) for part, op, cells in self.parts))


@attrs.define(eq=False)
class Entry:
    """A decision and the kernel made ready for it.

    ``sites`` are the call sites of a composite op's parts, ``failed`` the kernels whose ``prepare`` failed before
    this one's succeeded. ``warm`` once it has run.
    """

    decision: Decision
    kernel: Kernel
    prepared: Prepared
    sites: tuple[Site, ...] = ()
    failed: Mapping[str, str] = attrs.field(factory=dict)
    warm: bool = False


@attrs.define(eq=False)
class Node:
    """What was decided in one cell. A kernel whose ``prepare`` failed for some values of its
    ``specializes_on`` leads, for those values, to what was decided without it."""

    decision: Decision
    kernel: Kernel
    names: tuple[str, ...]
    failed: Mapping[str, str] = attrs.field(factory=dict)
    children: dict[tuple[FactValue | None, ...], Entry | Node] = attrs.field(factory=dict)

    def find(self, facts: Facts) -> Entry | None:
        """The entry of a call in this cell, or None when it was not prepared yet."""
        child = self.children.get(self.values(facts))
        return child.find(facts) if isinstance(child, Node) else child

    def values(self, facts: Facts) -> tuple[FactValue | None, ...]:
        return tuple(facts.get(name) for name in self.names)

    def entries(self) -> list[Entry]:
        found: list[Entry] = []
        for child in self.children.values():
            found += child.entries() if isinstance(child, Node) else [child]
        return found


def node_of(site: Site, decision: Decision, failed: Mapping[str, str]) -> Node:
    """What a site remembers of a decision that was made without the kernels in ``failed``."""
    kernel = decision.kernel
    assert kernel is not None  # resolve() raises instead
    return Node(decision, kernel, tuple(name for name in kernel.specializes_on if name in site.open), failed)


@attrs.define(eq=False)
class Memo:
    """All that one site remembers under one policy."""

    cells: Cells
    nodes: dict[tuple[Any, ...], Node] = attrs.field(factory=dict)

    def reads(self, still_open: frozenset[str]) -> frozenset[str]:
        """The open facts on which a call's entry depends."""
        return self.cells.reads(still_open) | {name for node in self.nodes.values() for name in node.names}

    def find(self, facts: Facts) -> Entry | None:
        node = self.nodes.get(self.cells(facts))
        return node.find(facts) if node is not None else None

    def entries(self) -> list[Entry]:
        return [entry for node in self.nodes.values() for entry in node.entries()]
