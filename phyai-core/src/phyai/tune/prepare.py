"""A candidate made ready to be timed: pinned at call sites of its own, bound as an engine binds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from phyai.catalog import Catalog
from phyai.dispatch import Dispatcher, EngineResources, Site
from phyai.environment import Environment
from phyai.facts import FactValue
from phyai.op import Op
from phyai.policy import Layer, Policy, Restriction, Rule
from phyai.predicates import match
from phyai.quant.formats import holding
from phyai.quant.weight import QuantizedWeight
from phyai.testing.bench import Call, make_call
from phyai.testing.compare import mismatch, tolerance_of
from phyai.tune.task import Task, quant_facts
from phyai.tune.timers import Timer

_NAMED = ("role", "layer", "phase", "mode.capture")
#: Above every override of a user: a candidate is one of those that the policy allows.
_PIN_PRIORITY = 1 << 30


@attrs.frozen(eq=False)
class Bench:
    """The tensors of a task, and what to prepare candidates with. ``tensors`` are the sets that calls rotate over."""

    task: Task
    op: Op
    catalog: Catalog
    policy: Policy
    environment: Environment
    tensors: tuple[Call, ...]

    @classmethod
    def of(cls, task: Task, catalog: Catalog, policy: Policy, environment: Environment, timer: Timer) -> Bench:
        """Synthesize the tensors, as many sets as the timer wants.

        Raises:
            CallError: the task says too little to make tensors from.
        """
        op = catalog.op(task.op)
        packed = holding(catalog.quant_formats, task.case.layout, task.facts(catalog, environment))
        call = make_call(op, task.case, torch_device(environment), packed)
        count = timer.sets(sum(map(_nbytes, [*call.inputs.values(), *call.weights.values()])))
        copies = tuple(
            attrs.evolve(call, inputs=_copied(call.inputs), weights=_copied(call.weights)) for _ in range(1, count)
        )
        return cls(task, op, catalog, policy, environment, (call, *copies))

    def candidate(self, kernel: str) -> Candidate:
        """Prepare a kernel at one site for each set of weights.

        Raises:
            Exception: whatever the kernel raises.
        """
        rule = Rule(
            id="candidate",
            match=match({"op": self.op.name}),
            priority=_PIN_PRIORITY,
            restriction=Restriction((kernel,), pin=True),
            layer=Layer.OVERRIDE,
        )
        policy = attrs.evolve(self.policy, rules=(rule, *self.policy.rules))
        dispatcher = Dispatcher(self.catalog, policy, self.environment, EngineResources(self.environment.device))
        sites = [self._bind(dispatcher, self.tensors[0])]
        sites += [self._bind(dispatcher, call) if call.weights else sites[0] for call in self.tensors[1:]]
        # calls write to what they mutate: every candidate begins with tensors that no other has touched
        own = tuple(attrs.evolve(c, inputs={**c.inputs, **_copied(_mutated(c))}) for c in self.tensors)
        return Candidate(kernel, dispatcher, tuple(zip(sites, own, strict=True)))

    def _bind(self, dispatcher: Dispatcher, call: Call) -> Site:
        task, case = self.task, self.task.case
        extra: dict[str, FactValue] = {n: v for n, v in case.facts.items() if n not in _NAMED}
        facts = task.facts(self.catalog, self.environment)
        return dispatcher.bind(
            self.op.name,
            role=_text(case.facts.get("role")),
            phase=_text(case.facts.get("phase")),
            weights=call.weights,
            attrs=case.attrs,
            dtypes={n: d for n, d in case.dtypes.items() if n not in call.weights},
            dims={d.name: case.dims[d.name] for d in self.op.dims if f"shape.{d.name}" in facts},
            present=tuple(name for name in case.present if name not in call.weights),
            facts={**extra, **quant_facts(case)},
            capture=task.capture,
        )


@attrs.frozen(eq=False)
class Candidate:
    """A kernel at its sites."""

    kernel: str
    dispatcher: Dispatcher
    places: tuple[tuple[Site, Call], ...]

    def warm_up(self) -> list[Any]:
        """Run every site once, freeze, and return what the first gave: outputs, then mutated inputs."""
        given: list[Any] = []
        for position, (site, call) in enumerate(self.places):
            returned = site.run(*call.inputs.values(), state=_state(site, call))
            if position == 0:
                outputs = list(returned) if isinstance(returned, tuple | list) else [returned]
                given = [*(o.clone() for o in outputs if o is not None), *_copied(_mutated(call)).values()]
        self.dispatcher.freeze()
        return given

    def calls(self) -> tuple[Callable[[], Any], ...]:
        """What the timer is to time: one call without arguments for each set of tensors."""
        made = []
        for site, call in self.places:
            named = {"state": _state(site, call)} if call.op.metadata else {}
            site.run(*call.inputs.values(), **named)  # after freezing, some kernels want their eager call again
            made.append(partial(site.run, *call.inputs.values(), **named))
        return tuple(made)


def torch_device(environment: Environment) -> str:
    device = environment.device
    return device.type if device.type == "cpu" else f"{device.type}:{device.index}"


def disagreement(task: Task, op: Op, got: Sequence[Any], want: Sequence[Any] | None) -> str | None:
    """Why results disqualify a candidate: NaN, or other numbers than the incumbent's beyond the op's tolerance."""
    call_names = [*(t.name for t in op.outputs), *(t.name for t in op.inputs if t.mutated)]
    names = [name for name in call_names if name in task.case.dtypes]
    for name, tensor in zip(names, got, strict=True):
        if tensor.is_floating_point() and bool(tensor.float().isnan().any()):
            return f"{name} holds NaN for ordinary inputs"
    scheme = task.case.scheme
    coarse = scheme is not None and (scheme.input is not None or scheme.output is not None)
    for name, g, w in zip(names, got, want or got, strict=True):
        problem = mismatch(name, g, w, tolerance_of(op, name, task.case.dtypes, quantized_input=coarse))
        if problem is not None:
            return f"other numbers than the incumbent's: {problem.replace('the reference says', 'the incumbent says')}"
    return None


def _state(site: Site, call: Call) -> Any:
    return site.plan(call.metadata) if call.op.metadata else None


def _nbytes(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, QuantizedWeight):
        return value.nbytes()
    return int(value.numel() * value.element_size())


def _mutated(call: Call) -> dict[str, Any]:
    return {name: call.inputs[name] for name in call.mutated}


def _copied(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) for name, value in tensors.items()}


def _copy(value: Any) -> Any:
    if isinstance(value, QuantizedWeight):
        own = {name: _copy(t) for name, t in value.tensors().items() if name not in value.packed}
        return attrs.evolve(value, **own, packed={name: _copy(t) for name, t in value.packed.items()})
    return value if value is None else value.clone()


def _text(value: FactValue | None) -> str | None:
    return None if value is None else str(value)
