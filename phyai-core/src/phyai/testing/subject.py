"""A kernel under test: pinned through a dispatcher of its own, beside the reference in float64."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import attrs

from phyai.catalog import Catalog
from phyai.composite import is_decomposition
from phyai.dispatch import Dispatcher, Site
from phyai.environment import Environment
from phyai.errors import DeclarationError
from phyai.kernel import Band, Kernel, Prepared
from phyai.op import FLOATS, Op
from phyai.policy import Policy, Restriction, Rule, default_policy
from phyai.predicates import match
from phyai.quant.formats import PLAIN, QuantFormat
from phyai.testing.bench import Call, make_call, widened
from phyai.testing.case import Case, quant_facts
from phyai.testing.compare import mismatch, tolerance_of
from phyai.testing.memory import Placed, place
from phyai.testing.space import Space

#: The backend that says what is right.
REFERENCE = "reference"


class Finding(AssertionError):
    """Something that a kernel does and should not."""


class NotApplicable(Exception):
    """A check has nothing to say about this call; the message says why."""


@attrs.frozen(eq=False)
class Subject:
    """One kernel under test on one machine. ``catalog`` holds it, the op and the reference."""

    kernel: Kernel
    catalog: Catalog
    environment: Environment
    elements: int = 1 << 17

    @property
    def op(self) -> Op:
        return self.catalog.op(self.kernel.op)

    @property
    def device(self) -> str:
        device = self.environment.device
        return f"{device.type}:{device.index}" if device.type != "cpu" else "cpu"

    @functools.cached_property
    def space(self) -> Space:
        return Space(
            self.op,
            self.kernel.when,
            self.environment,
            self.catalog.vocabulary_of(self.op.name),
            self.elements,
            tuple(name for name in self.kernel.layouts if name == PLAIN or name in {f.layout for f in self._formats}),
            self._formats,
        )

    @property
    def _formats(self) -> tuple[QuantFormat, ...]:
        return tuple(f for f in self.catalog.quant_formats if isinstance(f, QuantFormat))

    # Calls

    def call(self, case: Case, *, seed: int | None = None) -> Call:
        packed = None
        if case.layout not in (None, PLAIN):
            packed = self.space.format_of(case, self.space.facts(case) or {})
            if packed is None:
                raise NotApplicable(f"no quantization format packs such a weight into {case.layout}")
        return make_call(self.op, case, self.device, packed, seed=seed)

    def site(self, call: Call, *, capture: bool = False) -> Bound:
        """The kernel, pinned at a call site of its own that is bound as an engine would."""
        rule = Rule(
            id="conformance",
            match=match({"op": self.op.name}),
            restriction=Restriction((self.kernel.id,), pin=True),
            params=call.case.params,
        )
        return bind(self.catalog, _policy((rule,)), self.environment, call, capture=capture)

    def wanted(self, call: Call) -> list[Any]:
        """The outputs, then the mutated inputs, that the reference gives in float64 for the very same inputs."""
        wide = widened(call)
        bound = bind(self.catalog, self._reference_policy, self.environment, wide)
        return results(wide, bound.run(wide))

    @functools.cached_property
    def _reference_policy(self) -> Policy:
        rules = []
        for op in _and_parts(self.op, self.catalog):
            ids = tuple(self._references(op))
            if not ids:
                raise DeclarationError(
                    f"{self.kernel.id} cannot be tested: nothing says what {op.name} is; install "
                    f"phyai-backend-reference, or declare a kernel of {op.name} with band REFERENCE that takes float64"
                )
            rules.append(Rule(id=f"reference-{op.name}", match=match({"op": op.name}), restriction=Restriction(ids)))
        return _policy(rules)

    def _references(self, op: Op) -> Iterable[str]:
        kernels = self.catalog.kernels_of(op.name)
        if op.composite:
            return [kernel.id for kernel in kernels if is_decomposition(kernel)]
        plain = [kernel.id for kernel in kernels if kernel.backend == REFERENCE]
        return plain or [k.id for k in kernels if k.band is Band.REFERENCE and k.id != self.kernel.id]

    def check(self, call: Call, got: Iterable[Any], want: Iterable[Any], what: str = "") -> None:
        """Raise where results differ.

        Raises:
            Finding: naming the first one that is wrong.
        """
        problem = self.difference(call, got, want)
        if problem is not None:
            raise Finding(f"{what}{problem}")

    def difference(self, call: Call, got: Iterable[Any], want: Iterable[Any]) -> str | None:
        for name, g, w in zip(result_names(call), got, want, strict=True):
            problem = mismatch(name, g, w, self.tolerance(call, name))
            if problem is not None:
                return problem
        return None

    def tolerance(self, call: Call, name: str) -> Any:
        """What one result is held to: see :func:`phyai.testing.compare.tolerance_of`."""
        scheme = call.case.scheme
        coarse = scheme is not None and (scheme.input is not None or scheme.output is not None)
        through = tuple(call.inputs) if self.op.decomposes else call.mutated
        given = [name for name in through if call.case.dtypes.get(name) in FLOATS]
        return tolerance_of(
            self.op, name, call.case.dtypes, through=given, quantized_input=coarse,
            accumulation=self.kernel.numerics.accumulation,
        )  # fmt: skip

    @functools.cached_property
    def watched(self) -> tuple[Subject, list[str]]:
        """The same kernel, and a list to which it adds when its ``prepare`` or ``run`` begins."""
        original, entered = self.kernel, list[str]()

        def prepare(*args: Any) -> Prepared:
            entered.append("prepare")
            prepared = original.load()(*args)

            def run(*inputs: Any, **named: Any) -> Any:
                entered.append("run")
                return prepared.run(*inputs, **named)

            return attrs.evolve(prepared, run=run)

        kernel = attrs.evolve(original, prepare=prepare)
        others = tuple(kernel if k.id == kernel.id else k for k in self.catalog.kernels)
        return attrs.evolve(self, kernel=kernel, catalog=attrs.evolve(self.catalog, kernels=others)), entered


@attrs.frozen(eq=False)
class Bound:
    """A call site and the dispatcher that made it."""

    dispatcher: Dispatcher
    site: Site

    def plan(self, call: Call) -> Any:
        """The state for a call of an op with metadata; None for any other."""
        if not call.op.metadata:
            return None
        open_dims = {name: size for name, size in call.case.dims.items() if f"shape.{name}" in self.site.open}
        return self.site.plan(call.metadata, **open_dims)

    def run(self, call: Call, out: Any = None) -> Any:
        return self.site.run(*call.inputs.values(), out=out, state=self.plan(call))


def bind(catalog: Catalog, policy: Policy, environment: Environment, call: Call, *, capture: bool = False) -> Bound:
    """A call site for ``call``: weights, attributes, and the dimensions that do not change from call to call."""
    op, case = call.op, call.case
    dispatcher = Dispatcher(catalog, policy, environment)
    quant = quant_facts(op, case.scheme, case.layout)
    static = {dim.name: case.dims[dim.name] for dim in op.dims if not dim.dynamic and dim.name in case.dims}
    bound = {t.name for t in op.weights}
    site = dispatcher.bind(
        op.name,
        weights=call.weights,
        attrs=case.attrs,
        dtypes={name: dtype for name, dtype in case.dtypes.items() if name not in bound},
        dims=static,
        present=tuple(name for name in case.present if name not in bound),
        facts={**case.facts, **quant},
        capture=capture,
    )
    return Bound(dispatcher, site)


def about(kernel: Kernel, catalog: Catalog) -> Catalog:
    """What the test of one kernel needs of a catalog: deciding among fewer kernels is quicker, and no different."""
    ops = _and_parts(catalog.op(kernel.op), catalog)
    names = {op.name for op in ops}
    kept = {op.name: op for op in ops}
    kernels = tuple(k for k in catalog.kernels if k.op in names)
    return Catalog(
        ops=tuple(kept.values()), kernels=kernels, quant_formats=catalog.quant_formats, libraries=catalog.libraries
    )


def result_names(call: Call) -> list[str]:
    """The outputs, then the mutated inputs."""
    return [*(t.name for t in call.op.outputs), *call.mutated]


def results(call: Call, returned: Any) -> list[Any]:
    """What a call gave: its outputs, then its mutated inputs.

    Raises:
        Finding: not as many outputs as the signature has.
    """
    outputs = list(returned) if isinstance(returned, tuple | list) else [] if returned is None else [returned]
    if len(outputs) != len(call.op.outputs):
        raise Finding(f"run gave {len(outputs)} outputs; {call.op.name} has {len(call.op.outputs)}")
    return [*outputs, *(call.inputs[name] for name in call.mutated)]


def places(call: Call, want: Iterable[Any]) -> list[Placed]:
    """Poisoned outputs for a call, in the form of its case, shaped as the reference's are."""
    from phyai.synthesize import torch_dtype

    found = []
    for tensor, w in zip(call.op.outputs, want, strict=False):
        dtype = torch_dtype(call.case.dtypes[tensor.name])
        found.append(place(tuple(w.shape), dtype, w.device, call.case.memory))
    return found


def as_out(placed: list[Placed]) -> Any:
    """The ``out=`` of a call: None, a tensor, or a tuple."""
    tensors = tuple(p.tensor for p in placed)
    return None if not tensors else tensors[0] if len(tensors) == 1 else tensors


_shipped = functools.cache(default_policy)


def _policy(rules: Iterable[Rule]) -> Policy:
    """The rules over the shipped default policy, which settles ties between the kernels of a composite op's parts."""
    defaults = attrs.evolve(_shipped().defaults, fallback="reference")  # a part that only the reference has is no news
    return Policy(rules=(*_shipped().rules, *rules), defaults=defaults)


def _and_parts(op: Op, catalog: Catalog) -> list[Op]:
    return [op, *(inner for part in op.parts for inner in _and_parts(catalog.op(part.op), catalog))]
