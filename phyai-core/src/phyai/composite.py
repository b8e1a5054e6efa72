"""Composite ops: the facts of their parts, and their decomposition as a kernel.

A composite op lists its parts (:class:`phyai.op.Part`) and has a builder, ``compose(sites, facts) -> run``,
that chains them. :func:`decomposition` makes the kernel ``decomposed.<op>`` of it, which is a candidate
like any fused kernel: it has no capability of its own, runs wherever its parts do, and stands in the lowest
band among the kernels that they resolve to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from phyai.calls import call_facts
from phyai.facts import Facts, FactValue
from phyai.kernel import Band, Capture, Kernel, Numerics, Prepared, Resources
from phyai.op import Op, Part
from phyai.predicates import match
from phyai.targets import load as load_target

if TYPE_CHECKING:
    from phyai.decision import Decision

#: The backend that decompositions count as.
BACKEND = "decomposed"

_CAPTURE_ORDER = (Capture.SAFE, Capture.AFTER_WARMUP, Capture.NEVER)
_INHERITED = ("role", "phase", "mode.capture")
_INHERITED_FAMILIES = ("model.", "device.", "lib.")


def decomposition(op: Op) -> Kernel:
    """The kernel ``decomposed.<op>`` of a composite op, before its parts are resolved."""

    def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
        if op.chained:
            return Prepared(run=resources.chain(), refresh=lambda new: None)  # its sites are refreshed by themselves
        return _prepare(op, facts, weights, resources)

    return Kernel(
        id=f"{BACKEND}.{op.name}",
        op=op.name,
        when=match({"op": op.name}),
        prepare=prepare,
        capture=Capture.SAFE,
        numerics=Numerics(reproducible=True, batch_invariant=True),
        band=Band.GENERAL if op.chained else Band.REFERENCE,
        doc=f"{op.name} as a chain of {'its caller' if op.chained else ', '.join(part.op for part in op.parts)}",
    )


def is_decomposition(kernel: Kernel) -> bool:
    return kernel.backend == BACKEND


def as_resolved(kernel: Kernel, parts: Mapping[str, Decision]) -> Kernel:
    """The decomposition with the properties of the kernels that its parts resolved to: the weakest of each."""
    resolved = tuple((part.kernel, part.facts) for part in parts.values() if part.kernel is not None)
    found = tuple(kernel for kernel, _ in resolved)
    if not found:
        return kernel
    accumulation = {k.numerics.accumulation for k in found}
    return attrs.evolve(
        kernel,
        band=min(kernel.band_on(facts) for kernel, facts in resolved),
        capture=max((k.capture for k in found), key=_CAPTURE_ORDER.index),
        numerics=Numerics(
            reproducible=all(k.numerics.reproducible for k in found),
            batch_invariant=all(k.numerics.batch_invariant for k in found),
            accumulation=accumulation.pop() if len(accumulation) == 1 else "mixed",
        ),
    )


def part_facts(op: Op, part: Part, part_op: Op, facts: Mapping[str, FactValue]) -> Facts:
    """The facts of one part's call, from those of the composite's call.

    The part keeps the composite's role, phase, model, device and libraries; its layer is ``parts.<part>.layer``, or
    ``<layer>.<part>`` (see :attr:`phyai.op.Part.layer`); its ``quant.*``, and what begins with ``parts.``, are the
    composite's ``parts.<part>.quant.*`` and ``parts.<part>.parts.*``. A dimension or attribute that follows from a
    dimension that is not known yet is left out.
    """
    dims = {name[6:]: value for name, value in facts.items() if name.startswith("shape.") and isinstance(value, int)}
    dtypes = {name[6:]: str(value) for name, value in facts.items() if name.startswith("dtype.")}
    extra = {name: value for name, value in facts.items() if name in _INHERITED or name.startswith(_INHERITED_FAMILIES)}
    head = f"parts.{part.name}."
    extra |= {name[len(head) :]: value for name, value in facts.items() if name.startswith(head)}
    if "layer" in facts and "layer" not in extra:
        behind = part.name if part.layer is None else part.layer
        extra["layer"] = f"{facts['layer']}.{behind}" if behind else facts["layer"]
    part_dtypes = _part_dtypes(op, part, part_op, dtypes)
    return call_facts(
        part_op,
        dims=_part_dims(part, part_op, dims),
        dtypes=part_dtypes,
        attrs=_part_attrs(op, part, facts, dims),
        present=[t.name for t in part_op.tensors if t.optional and t.name in part_dtypes],
        extra=extra,
    )


def _part_dims(part: Part, part_op: Op, dims: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for dim in part_op.dims:
        source = part.dims.get(dim.name, dim.name)
        try:
            found[dim.name] = dims[source] if isinstance(source, str) else source(dims)
        except KeyError:  # it follows from one that this call has not said
            continue
    return found


def _part_dtypes(op: Op, part: Part, part_op: Op, dtypes: Mapping[str, str]) -> dict[str, str]:
    """Dtypes of the part's tensors: as mapped, else those of its weights, else the composite's main one."""
    named = {t.name for t in op.tensors}
    main = next((dtypes[t.name] for t in op.inputs if t.name in dtypes), None)
    found: dict[str, str] = {}
    for tensor in part_op.tensors:
        source = part.dtypes.get(tensor.name) or part.weights.get(tensor.name)
        if source is not None:
            dtype = dtypes.get(source) if source in named else source
            if dtype is not None:
                found[tensor.name] = dtype
        elif not tensor.optional and main is not None and main in tensor.dtypes:
            found[tensor.name] = main
    return found


def _part_attrs(op: Op, part: Part, facts: Mapping[str, FactValue], dims: Mapping[str, int]) -> dict[str, Any]:
    """The composite's attributes of that name (None where one yields no fact), what follows from its dimensions, or
    else constants."""
    own = {attribute.name for attribute in op.attributes}
    found: dict[str, Any] = {}
    for name, value in part.attrs.items():
        if not callable(value):
            found[name] = facts.get(f"attrs.{value}") if value in own else value
            continue
        try:
            found[name] = value(dims)
        except KeyError:  # as for dimensions
            continue
    return found


def readers(op: Op, weight: str) -> tuple[Part, ...]:
    """The part of a composite op that reads one of its weights, then the part of that which does, and so on inward.

    >>> from phyai.ops.gated_mlp_gated_residual import OP
    >>> [part.name for part in readers(OP, "down")], readers(OP, "x")
    (['gated_mlp', 'down'], ())
    """
    found: list[Part] = []
    parts = op.parts
    while part := next((part for part in parts if weight in part.weights.values()), None):
        found.append(part)
        weight = next(name for name, source in part.weights.items() if source == weight)
        parts = part.parts
    return tuple(found)


def form_of(op: Op, weight: str) -> str:
    """What stands before ``quant.`` in the facts of a weight's form; nothing where it is read by the op itself.

    >>> from phyai.ops.gated_mlp_gated_residual import OP
    >>> form_of(OP, "down")
    'parts.gated_mlp.parts.down.'
    """
    return "".join(f"parts.{part.name}." for part in readers(op, weight))


def part_name(fact: str) -> str:
    """The name of the part, in parts of parts, whose fact of a composite op's call this is.

    >>> part_name("parts.down.quant.layout"), part_name("parts.block.parts.down.quant.layout")
    ('down', 'block.down')
    """
    name, *rest = fact.removeprefix("parts.").split(".", 1)
    below = rest[0] if rest else ""
    return f"{name}.{part_name(below)}" if below.startswith("parts.") else name


def innermost(parts: Iterable[Part]) -> Iterator[tuple[str, Part]]:
    """The parts that are no composites themselves, each with what its facts begin with among the whole's, and with its
    weights by the whole's names."""
    for part in parts:
        if not part.parts:
            yield f"parts.{part.name}.", part
        for head, inner in innermost(part.parts):
            named = {name: part.weights[source] for name, source in inner.weights.items() if source in part.weights}
            yield f"parts.{part.name}.{head}", attrs.evolve(inner, weights=named)


def depth(parts: Iterable[Part]) -> int:
    """How far composites lie inside each other: 0 without parts."""
    return max((1 + depth(part.parts) for part in parts), default=0)


def leaves(decisions: Mapping[str, Decision]) -> dict[str, Kernel]:
    """The kernels that parts resolve to, by part; of a part that is a chain itself, those of its parts in its place."""
    found: dict[str, Kernel] = {}
    for name, decision in decisions.items():
        if decision.kernel is None:
            continue
        if is_decomposition(decision.kernel):
            found |= {f"{name}.{inner}": kernel for inner, kernel in leaves(decision.parts).items()}
        else:
            found[name] = decision.kernel
    return found


def standing(op: Op, decisions: Mapping[str, Decision]) -> dict[str, Decision]:
    """The decision of the part that stands for the whole, whose layer is the whole's; nothing where no part does.

    A rule that matches both is about that part, and about what is joined to it only where it matches that as well.
    """
    names = [part.name for part in op.parts if part.layer == ""]
    return {name: decisions[name] for name in names if name in decisions}


def part_weights(part: Part, weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of one part, by its own op's names. Where the composite's weight is a mapping (the tensors
    of a quantized weight), the part gets those tensors."""
    own: dict[str, Any] = {}
    for name, source in part.weights.items():
        value = weights.get(source)
        if isinstance(value, Mapping) and not part.parts:
            own |= value
        elif value is not None:
            own[name] = value
    return own


def _prepare(op: Op, facts: Facts, weights: Mapping[str, Any], resources: Resources) -> Prepared:
    sites: dict[str, Any] = {}
    for part in op.parts:
        sites[part.name] = resources.site(part.name, part.op, facts, part_weights(part, weights))
    compose = load_target(str(op.compose))

    def refresh(new: Mapping[str, Any]) -> None:
        for part in op.parts:
            own = part_weights(part, new)
            if own:
                sites[part.name].refresh(own)

    return Prepared(run=compose(sites, facts), refresh=refresh)
