"""The facts of a call, from its op's signature and what is known of it.

>>> from phyai.op import Dim, Op, Tensor
>>> op = Op("scale", "", (Tensor("x", ("...M", "K")), Tensor("mask", ("M",), dtypes=("bool",), optional=True),
...                       Tensor("y", ("...M", "K"), "output")), (Dim("M", "rows", dynamic=True), Dim("K", "columns")))
>>> dict(call_facts(op, dims={"K": 8}, dtypes={"x": "bfloat16"}))
{'op': 'scale', 'shape.K': 8, 'dtype.x': 'bf16', 'dtype.y': 'bf16'}
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from phyai.errors import CallError
from phyai.facts import Facts, FactValue, Vocabulary, canonical_dtype
from phyai.op import FLOATS, Attr, Op
from phyai.spelling import did_you_mean


def call_facts(
    op: Op,
    *,
    dims: Mapping[str, int],
    dtypes: Mapping[str, str],
    attrs: Mapping[str, Any] | None = None,
    present: Collection[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> Facts:
    """Facts of a call of ``op`` as far as they are known.

    ``dims`` may leave dimensions out (they are open then), ``dtypes`` tensors: see :func:`fill_dtypes`.
    Attributes that are not given have the signature's default; one whose value is None yields no fact.
    ``extra`` adds facts that the signature does not speak of (role, layer, ``quant.*``, ``device.*``).

    Raises:
        CallError: a name that the signature does not have, a value that it does not allow, or values that contradict
            each other.
    """
    _known("dimension", dims, (d.name for d in op.dims), op)
    facts: dict[str, FactValue] = {"op": op.name}
    for dim in op.dims:
        size = dims.get(dim.name)
        if size is None:
            continue
        if size < dim.minimum:
            raise CallError(f"{op.name}: {dim.name}={size}; the signature asks for at least {dim.minimum}")
        facts[f"shape.{dim.name}"] = size
    facts |= {f"dtype.{name}": dtype for name, dtype in fill_dtypes(op, dtypes, present).items()}
    facts |= {f"attrs.{name}": value for name, value in attributes(op, attrs or {}).items() if value is not None}
    facts |= {name: _plain(value) for name, value in (extra or {}).items() if value is not None}
    return checked(op, with_derived(op, facts))


def with_derived(op: Op, facts: Mapping[str, FactValue]) -> Facts:
    """``facts`` and those that the op derives from them."""
    return Facts(facts if op.derive is None else {**facts, **op.derive(facts)})


def checked(op: Op, facts: Facts) -> Facts:
    """``facts``, once the op says that they do not contradict each other.

    Raises:
        CallError: they do; what cannot be together is named.
    """
    problem = op.contradiction(facts) if op.contradiction is not None else None
    if problem is not None:
        raise CallError(problem)
    return facts


def fill_dtypes(op: Op, given: Mapping[str, str], present: Collection[str] = ()) -> dict[str, str]:
    """A canonical dtype for every tensor that a call has: all required ones, optional ones that are given.

    A tensor without a given dtype takes the main one (that of the first tensor given, in the order of the
    signature, that is a float) where its signature allows that, else the first that its signature allows.

    Raises:
        CallError: an unknown tensor, a dtype that the signature does not allow, or a required input that could
            have several and no tensor to take one from.
    """
    _known("tensor", given, (t.name for t in op.tensors), op)
    _known("tensor", present, (t.name for t in op.tensors), op)
    canonical = {name: canonical_dtype(str(dtype)) for name, dtype in given.items() if dtype is not None}
    for tensor in op.tensors:
        dtype = canonical.get(tensor.name)
        if dtype is not None and dtype not in tensor.dtypes:
            raise CallError(f"{op.name}: {tensor.name} has dtype {dtype}; allowed: {', '.join(tensor.dtypes)}")
    main = next((canonical[t.name] for t in op.tensors if canonical.get(t.name) in FLOATS), None)
    filled: dict[str, str] = {}
    for tensor in op.tensors:
        if tensor.optional and tensor.name not in present and tensor.name not in canonical:
            continue
        dtype = canonical.get(tensor.name) or (main if main in tensor.dtypes else None)
        if dtype is None and main is None and tensor.kind == "input" and len(tensor.dtypes) > 1:
            raise CallError(f"{op.name}: the dtype of {tensor.name} is not given; allowed: {', '.join(tensor.dtypes)}")
        filled[tensor.name] = dtype or tensor.dtypes[0]
    return filled


def attributes(op: Op, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every attribute's value: the one given, or the signature's default.

    Raises:
        CallError: an unknown attribute, or a value that the signature does not allow.
    """
    _known("attribute", given, (a.name for a in op.attributes), op)
    return {a.name: _attribute(op, a, given[a.name]) if a.name in given else a.default for a in op.attributes}


def check_names(op: Op, names: Iterable[str], vocabulary: Vocabulary) -> None:
    """Refuse facts that no call of ``op`` can carry.

    Raises:
        CallError: naming the nearest fact that is declared.
    """
    for name in names:
        if vocabulary.find(name) is None:
            near = vocabulary.suggest(name)
            hint = f"did you mean `{near}`?" if near else f"`phyai ops {op.name}` lists the facts"
            raise CallError(f"{op.name} has no fact {name!r}; {hint}")


def _attribute(op: Op, attr: Attr, value: Any) -> Any:
    if not attr.allows(value):
        raise CallError(f"{op.name}: {attr.name}={value!r}; allowed: {attr.allowed()}")
    return value


def _plain(value: Any) -> FactValue:
    """A fact's value: collections become frozen sets, anything else stays."""
    return frozenset(value) if isinstance(value, list | tuple | set) else value


def _known(what: str, given: Iterable[str], allowed: Iterable[str], op: Op) -> None:
    names = tuple(allowed)
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names) or f"it has: {', '.join(names) or 'none'}"
            raise CallError(f"{op.name} has no {what} {name!r}; {hint}")
