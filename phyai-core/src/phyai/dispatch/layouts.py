"""Choosing, when a site is bound, how its quantized weights lie in memory.

Each weight is lowered as the call that reads it: the site's own, or that of a composite op's part. Where a
restriction on the composite itself does not hold under the layouts that come first, the others are tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from phyai.composite import form_of, part_facts, readers
from phyai.errors import CallError, NoKernelError
from phyai.facts import Facts
from phyai.op import Op
from phyai.predicates import Partition
from phyai.quant.formats import PLAIN
from phyai.quant.lowering import LayoutChoice, holds, lower
from phyai.quant.weight import QuantizedWeight
from phyai.resolver import reads, resolve

if TYPE_CHECKING:
    from phyai.catalog import Catalog
    from phyai.environment import Environment
    from phyai.policy import Policy

#: Rows of a site that declares none: from one to so many.
DEFAULT_ROWS = (1, 4096)


@attrs.frozen
class Wanted:
    """One quantized weight of a site: the call that reads it, and the layout that a rule forces.

    ``fact`` is the name of the site's fact that says how the weight lies.
    """

    weight: str
    fact: str
    call: Facts
    forced: str | None


@attrs.frozen
class Lowering:
    """What was chosen for one site, and from what: its facts with every weight plain, rows, and forced layouts."""

    static: Facts
    choices: Mapping[str, LayoutChoice] = attrs.field(factory=dict)
    rows: tuple[int, int] | None = None
    forced: Mapping[str, str] = attrs.field(factory=dict)

    def lowered(self, op: Op) -> Facts:
        """The site's facts with the layouts that were chosen."""
        return self.static.replace({_fact(op, name): choice.layout for name, choice in self.choices.items()})

    def packed(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Plain weights in the layouts that were chosen; what is not quantized stays."""
        return {name: self.choices[name].pack(w) if name in self.choices else w for name, w in weights.items()}


def plain_quantized(weights: Mapping[str, Any]) -> list[str]:
    """The names of the weights that can be lowered."""
    return [n for n, weight in weights.items() if isinstance(weight, QuantizedWeight) and weight.layout == PLAIN]


def _rows_of(op: Op, weight: str) -> str:
    """The fact of a composite op that says how many rows the product with one of its weights has."""
    dim = "M"
    for part in reversed(readers(op, weight)):
        source = part.dims.get(dim, dim)
        dim = source if isinstance(source, str) else "M"
    return f"shape.{dim}"


def _fact(op: Op, weight: str) -> str:
    """The fact of a site that says how one of its weights lies."""
    return f"{form_of(op, weight)}quant.layout"


@attrs.define
class Layouts:
    """Chooses layouts for the sites of one dispatcher under one policy, and remembers what it chose for equal calls."""

    catalog: Catalog
    policy: Policy
    environment: Environment
    _chosen: dict[Hashable, dict[str, LayoutChoice]] = attrs.field(factory=dict, init=False)

    def choose(
        self,
        op: Op,
        static: Facts,
        names: Sequence[str],
        *,
        rows: tuple[int, int] | None = None,
        forced: Mapping[str, str] | None = None,
    ) -> dict[str, LayoutChoice]:
        """The layout of each of the weights called ``names``, which are quantized and plain.

        Raises:
            CallError: ``forced`` names another weight.
            NoKernelError: no layout gives every call a kernel.
        """
        for name in (forced or {}).keys() - set(names):
            raise CallError(f"a layout is given for weight {name}, which is no quantized weight in the plain layout")
        wanted = [self._wanted(op, static, name, (forced or {}).get(name)) for name in names]
        if not wanted:
            return {}
        key = self._key(static, wanted, rows)
        if key not in self._chosen:
            self._chosen[key] = self._choose(op, static, wanted, rows)
        return self._chosen[key]

    def of_facts(self, op: Op, facts: Facts) -> dict[str, LayoutChoice]:
        """The layouts of the quantized weights of a call that is known by its facts alone, by the fact that says them.

        Those that ``facts`` give are not chosen; where no layout gives the call a kernel, none is.
        """
        names = [t.name for t in op.weights if "int8" in t.dtypes]  # weights that can hold codes
        quantized = {
            name: _fact(op, name)
            for name in names
            if _fact(op, name) not in facts and f"{_fact(op, name).removesuffix('layout')}scheme" in facts
        }
        try:
            chosen = self.choose(op, facts, list(quantized))
        except NoKernelError:
            return {}  # the decision says why, with the weights plain
        return {fact: chosen[name] for name, fact in quantized.items()}

    def _choose(
        self, op: Op, static: Facts, wanted: Sequence[Wanted], rows: tuple[int, int] | None
    ) -> dict[str, LayoutChoice]:
        first = {w.weight: self._lower(w, rows) for w in wanted}
        if not op.composite or all(len(choice.considered) == 1 for choice in first.values()):
            return first
        return self._under_composite(op, static, wanted, first, rows)

    def _wanted(self, op: Op, static: Facts, name: str, forced: str | None) -> Wanted:
        fact, call = _fact(op, name), static
        for part in readers(op, name):
            inner = self.catalog.op(part.op)
            op, call = inner, part_facts(op, part, inner, call)
        return Wanted(name, fact, call, forced)

    def _key(self, static: Facts, wanted: Sequence[Wanted], rows: tuple[int, int] | None) -> Hashable:
        """What a choice depends on: the calls without their layers, and what rules and kernels ask of those."""
        return rows, tuple(
            (call.replace({"layer": None}), forced, self._asked(call))
            for call, forced in [(static, None), *((w.call, w.forced) for w in wanted)]
        )

    def _asked(self, call: Facts) -> Hashable:
        unknown = call.replace(dict.fromkeys((n for n in call if n.endswith("quant.layout")), None))
        kernels = self.catalog.kernels_of(str(call["op"]))
        of_layers = ((k.id, p) for k in kernels for p in k.conditions if "layer" in p.facts)
        return (
            tuple((rule.ref, rule.match.given(unknown)) for rule in self.policy.candidates(unknown)),
            tuple((id, condition.given(unknown)) for id, condition in of_layers),
        )

    def _lower(self, wanted: Wanted, rows: tuple[int, int] | None) -> LayoutChoice:
        op = self.catalog.op(str(wanted.call["op"]))
        return lower(
            wanted.call,
            catalog=self.catalog,
            policy=self.policy,
            environment=self.environment,
            rows=self._rows(op, wanted.call, rows),
            forced=wanted.forced,
        )

    def _rows(self, op: Op, call: Facts, rows: tuple[int, int] | None, dim: str = "shape.M") -> tuple[int, ...]:
        """One number of rows for every set of them that some kernel's or rule's predicate tells from the others."""
        fixed = call.get(dim)
        if isinstance(fixed, int):
            return (fixed,)
        unknown = call.replace(dict.fromkeys((n for n in call if n.endswith("quant.layout")), None))
        literals = [
            literal for predicate in reads(op, unknown, self.catalog, self.policy) for literal in predicate.literals()
        ]
        return Partition.of(dim, literals).samples(*(rows or DEFAULT_ROWS))

    def _under_composite(
        self,
        op: Op,
        static: Facts,
        wanted: Sequence[Wanted],
        first: dict[str, LayoutChoice],
        rows: tuple[int, int] | None,
    ) -> dict[str, LayoutChoice]:
        """``first`` if what rules ask of the composite holds under it; else the first others under which it does."""
        per_weight = [[first[w.weight], *first[w.weight].others()] for w in wanted]  # a forced one has no others
        dim = _rows_of(op, wanted[0].weight)
        samples = self._rows(op, static, rows, dim)
        for choices in itertools.product(*per_weight):
            layouts = {w.fact: choice.layout for w, choice in zip(wanted, choices, strict=True)}
            if self._holds([static.replace({**layouts, dim: m}) for m in samples]):
                return {w.weight: choice for w, choice in zip(wanted, choices, strict=True)}
        return first  # nothing satisfies the rules: the call itself will say so, with the whole diagnosis

    def _holds(self, calls: Sequence[Facts]) -> bool:
        for call in calls:
            try:
                decision = resolve(call, self.catalog, self.policy, self.environment)
            except NoKernelError:
                return False
            if not holds(decision, self.catalog, self.policy):
                return False
        return True
