"""Remembering decisions: the key holds what a decision can depend on, and nothing else.

A call's *cell* says, for each fact that is open at the site (not known when it was bound), which of the values that
a candidate's or a rule's predicate can tell apart it has. Two calls in one cell get one decision. Where the
winner prepares differently for some dynamic facts (``specializes_on``), their values tell its entries apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import attrs

from phyai.catalog import Catalog
from phyai.composite import part_facts
from phyai.decision import Decision
from phyai.facts import Facts, FactValue
from phyai.kernel import Prepared
from phyai.op import Op, Part
from phyai.policy import Policy
from phyai.predicates import Literal, MemoKey
from phyai.resolver import reads


def open_facts(op: Op, static: Mapping[str, FactValue]) -> frozenset[str]:
    """Names of the facts that a call may add to ``static``: dimensions that inputs carry, and derived facts."""
    from_inputs = {f"shape.{name}" for name in input_dims(op)}
    derived = {spec.name for spec in op.extra_facts}
    return frozenset(name for name in from_inputs | derived if name not in static)


def input_dims(op: Op) -> frozenset[str]:
    """Names of the dimensions that the inputs of a call show. Metadata goes to ``plan`` only: what it alone shows
    is not a fact of the call."""
    from phyai.op import dim_names

    return frozenset(name for tensor in op.inputs for name in dim_names(tensor))


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
        self._key = MemoKey.of(residues, dynamic=still_open)
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cells) and self._identity() == other._identity()

    def _identity(self) -> tuple[Any, ...]:
        return self._op.name, self.literals, tuple((part.name, cells._identity()) for part, _, cells in self.parts)

    def __call__(self, facts: Facts) -> tuple[Any, ...]:
        return (*self._key(facts), *(cells(part_facts(self._op, part, op, facts)) for part, op, cells in self.parts))


@attrs.define(eq=False)
class Entry:
    """A decision and the kernel made ready for it. ``warm`` once it has run."""

    decision: Decision
    prepared: Prepared
    warm: bool = False


@attrs.define(eq=False)
class Node:
    """What was decided in one cell. A kernel whose ``prepare`` failed for some values of its
    ``specializes_on`` leads, for those values, to what was decided without it."""

    decision: Decision
    names: tuple[str, ...]
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


@attrs.define(eq=False)
class Memo:
    """All that one site remembers under one policy."""

    cells: Cells
    nodes: dict[tuple[Any, ...], Node] = attrs.field(factory=dict)

    def find(self, facts: Facts) -> Entry | None:
        node = self.nodes.get(self.cells(facts))
        return node.find(facts) if node is not None else None

    def entries(self) -> list[Entry]:
        return [entry for node in self.nodes.values() for entry in node.entries()]
