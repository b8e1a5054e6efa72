"""What is to be measured: one call, and the call sites that make it.

Tasks come from the argument specs of ops, or from a model: while it warms up, :func:`recording` notes the calls that
its sites see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs

from phyai.calls import call_facts
from phyai.catalog import Catalog
from phyai.dims import bind_dims
from phyai.dispatch import Dispatcher, Site
from phyai.environment import Environment
from phyai.facts import Facts, FactValue
from phyai.quant.scheme import QuantScheme
from phyai.testing.case import Case
from phyai.tune.key import CallKey, hidden_dims

#: Facts that a case has in parts of its own, or that the environment adds.
_NOT_OF_SITE = ("op", "shape.", "dtype.", "attrs.", "quant.", "device.", "lib.")


@attrs.frozen
class Task:
    """One call to measure, and the names of the ``sites`` that make it.

    ``case`` holds its dimensions, dtypes, attributes and quantization, and in ``facts`` its role and what else its site
    knows. Dimensions of metadata may be there to make tensors from; they are not facts of the call.
    """

    op: str
    case: Case
    sites: tuple[str, ...] = ()

    def facts(self, catalog: Catalog, environment: Environment) -> Facts:
        """The facts of the call as its sites know them, without the layer: all sites of a key share the outcome."""
        op = catalog.op(self.op)
        case = self.case
        hidden = hidden_dims(op)
        dims = {name: size for name, size in case.dims.items() if f"shape.{name}" not in hidden}
        own = {name: value for name, value in case.facts.items() if name != "layer"}
        extra: dict[str, Any] = {**environment.facts(), "mode.capture": False, **own, **quant_facts(case)}
        return call_facts(op, dims=dims, dtypes=case.dtypes, attrs=case.attrs, present=case.present, extra=extra)

    def key(self, catalog: Catalog, environment: Environment) -> CallKey:
        return CallKey.of(self.facts(catalog, environment), catalog)

    @property
    def capture(self) -> bool:
        return self.case.facts.get("mode.capture") is True

    def to_json(self, catalog: Catalog) -> dict[str, Any]:
        return {"op": self.op, "case": self.case.to_json(catalog.op(self.op))}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], catalog: Catalog) -> Task:
        return cls(str(data["op"]), Case.from_json(catalog.op(str(data["op"])), data["case"]))


def quant_facts(case: Case) -> dict[str, FactValue]:
    """The ``quant.*`` facts of a case."""
    facts = dict(case.scheme.facts()) if case.scheme is not None else {}
    return facts if case.layout is None else {**facts, "quant.layout": case.layout}


def op_tasks(name: str, catalog: Catalog, *, capture: bool = False) -> tuple[Task, ...]:
    """A task for every argument spec of an op that comes from a model; for all of them where none does."""
    op = catalog.op(name)
    specs = [spec for spec in op.arg_specs if spec.facts] or list(op.arg_specs)
    tasks = []
    for spec in specs:
        if not any(fact.startswith(("quant.", "parts.")) for fact in spec.facts):
            case = attrs.evolve(Case.of(op, spec), facts={**spec.facts, "mode.capture": capture})
            tasks.append(Task(op.name, case, (spec.name,)))
    return tuple(tasks)


@attrs.define
class Recording:
    """The calls that were seen at each site: their facts, and the dimensions that only their metadata show."""

    calls: dict[Site, dict[Facts, dict[str, int]]] = attrs.field(factory=dict)
    _planned: dict[Site, dict[str, int]] = attrs.field(factory=dict)
    _shared: dict[str, dict[str, int]] = attrs.field(factory=dict)  # sites may share what another one planned

    def see(self, site: Site, facts: Facts) -> None:
        planned = self._planned.get(site) or self._shared.get(site.op.name, {})
        self.calls.setdefault(site, {}).setdefault(facts, planned)

    def plan(self, site: Site, metadata: Mapping[str, Any]) -> None:
        planned = bind_dims(site.op.metadata, {n: tuple(t.shape) for n, t in metadata.items()})
        self._planned[site] = self._shared[site.op.name] = planned

    def each(self) -> Iterator[tuple[Site, Facts]]:
        """Every call that was seen."""
        for site, calls in self.calls.items():
            for facts in calls:
                yield site, facts

    def task_of(self, site: Site, facts: Facts) -> Task:
        return Task(site.op.name, _case(site, facts, self.calls[site][facts]), (site.name,))

    def tasks(self, catalog: Catalog, environment: Environment) -> tuple[Task, ...]:
        """One task for every kind of call, at the largest size seen of its bucket; the most frequent first."""
        found: dict[str, list[tuple[str, Task]]] = {}
        for site, facts in self.each():
            task = self.task_of(site, facts)
            found.setdefault(task.key(catalog, environment).text, []).append((site.name, task))
        tasks = []
        for seen in found.values():
            names = tuple(dict.fromkeys(name for name, _ in seen))
            largest = max((task for _, task in seen), key=lambda task: sorted(task.case.dims.items()))
            tasks.append(attrs.evolve(largest, sites=names))
        return tuple(sorted(tasks, key=lambda task: -len(task.sites)))


@contextmanager
def recording(dispatcher: Dispatcher) -> Iterator[Recording]:
    """Note the calls of every site while the body runs the model.

    The dispatcher is thawed, so that what its sites remember of shapes is asked for again.
    """
    seen = Recording()
    before = dispatcher.watcher
    dispatcher.watcher = seen
    dispatcher.thaw()
    try:
        yield seen
    finally:
        dispatcher.watcher = before


def _case(site: Site, facts: Facts, planned: Mapping[str, int]) -> Case:
    op = site.op
    dims = {name: int(size) for name, size in facts.under("shape").items() if any(d.name == name for d in op.dims)}  # type: ignore[arg-type]
    dtypes = {name: str(dtype) for name, dtype in facts.under("dtype").items()}
    scheme, layout = _quantization(site.weights)
    return Case(
        dims={**planned, **dims},
        dtypes=dtypes,
        attrs={a.name: facts.get(f"attrs.{a.name}") for a in op.attributes},
        present=tuple(t.name for t in op.tensors if t.optional and t.name in dtypes),
        facts={name: value for name, value in facts.items() if not name.startswith(_NOT_OF_SITE)},
        scheme=scheme,
        layout=layout,
    )


def _quantization(weights: Mapping[str, Any]) -> tuple[QuantScheme | None, str | None]:
    for weight in weights.values():
        scheme = getattr(weight, "scheme", None)
        if isinstance(scheme, QuantScheme):
            return scheme, weight.layout
    return None, None
