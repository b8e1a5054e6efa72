"""Checks of an op's signature: every name it uses is declared, and every module it names is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from phyai.dims import dim_names
from phyai.errors import DeclarationError
from phyai.op import ArgSpec, Op, Part

_KINDS = ("input", "weight", "output", "metadata")


def op_problems(op: Op, ops: Mapping[str, Op], has_module: Callable[[str], bool]) -> Iterator[str]:
    """What cannot be true in ``op``, in words. ``ops`` are those that its parts may call."""
    yield from _repeated("tensor", (tensor.name for tensor in op.tensors))
    yield from _repeated("dimension", (dim.name for dim in op.dims))
    yield from _repeated("attribute", (attribute.name for attribute in op.attributes))
    yield from _repeated("argument spec", (spec.name for spec in op.arg_specs))
    yield from _dim_problems(op)
    for tensor in op.tensors:
        if tensor.kind not in _KINDS:
            yield f"tensor {tensor.name} is of the kind {tensor.kind!r}; the kinds are {', '.join(_KINDS)}"
        if tensor.scratch is not None:
            yield from target_problems(f"tensor {tensor.name}: scratch {tensor.scratch!r}", tensor.scratch, has_module)
            if tensor.kind != "input" or tensor.mutated:
                yield f"tensor {tensor.name}: only an input that is not mutated can have scratch"
    for spec in op.arg_specs:
        yield from (f"argument spec {spec.name}: {problem}" for problem in _spec_problems(op, spec))
    if bool(op.parts) != bool(op.compose):
        yield "parts and compose go together: parts say what the op consists of, compose chains them"
    for part in op.parts:
        yield from (f"part {part.name}: {problem}" for problem in _part_problems(op, part, ops))
    for field in ("compose", "synthesize"):
        target = getattr(op, field)
        if target is not None:
            yield from target_problems(f"{field} {target!r}", target, has_module)


def target_problems(what: str, target: str, has_module: Callable[[str], bool]) -> Iterator[str]:
    """What is wrong with ``target``, which must read ``module:function`` and name a module that is there."""
    module, colon, attribute = target.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        yield f"{what} must read 'module:function'"
    elif not has_module(module):
        yield f"{what}: there is no module {module}"


def _repeated(what: str, names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield f"{what} {name} is declared twice"
        seen.add(name)


def _dim_problems(op: Op) -> Iterator[str]:
    declared = {dim.name for dim in op.dims}
    for tensor in op.tensors:
        try:
            used = dim_names(tensor)
        except DeclarationError as error:
            yield f"tensor {tensor.name}: {error}"
            continue
        for name in used:
            if name not in declared:
                yield f"tensor {tensor.name} has the dimension {name}, which dims does not declare"


def _spec_problems(op: Op, spec: ArgSpec) -> Iterator[str]:
    tensors = {tensor.name: tensor for tensor in op.tensors}
    yield from _unknown("dimension", spec.dims, (dim.name for dim in op.dims))
    yield from _unknown("tensor", (*spec.dtypes, *spec.present), tensors)
    yield from _unknown("attribute", spec.attrs, (attribute.name for attribute in op.attributes))
    for name, dtype in spec.dtypes.items():
        if name in tensors and dtype not in tensors[name].dtypes:
            yield f"{name} is given as {dtype}; the signature allows {', '.join(tensors[name].dtypes)}"


def _part_problems(op: Op, part: Part, ops: Mapping[str, Op]) -> Iterator[str]:
    called = ops.get(part.op)
    if called is None:
        yield f"it calls the unknown op {part.op!r}"
        return
    if part.parts != called.parts:
        yield f"its parts are not those of the op {part.op}"
    yield from _unknown("weight", part.weights, (weight.name for weight in called.weights))
    yield from _unknown("weight", part.weights.values(), (weight.name for weight in op.weights))
    yield from _unknown("attribute", part.attrs, (attribute.name for attribute in called.attributes))
    yield from _unknown("dimension", part.dims, (dim.name for dim in called.dims))
    yield from _unknown("tensor", part.dtypes, (tensor.name for tensor in called.tensors))


def _unknown(what: str, names: Iterable[str], declared: Iterable[str]) -> Iterator[str]:
    known = set(declared)
    for name in names:
        if name not in known:
            yield f"there is no {what} {name!r}; there {'are' if known else 'is'} {', '.join(sorted(known)) or 'none'}"
