"""What is known of a site's calls when it is bound."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from phyai.calls import call_facts
from phyai.dims import bind_dims, dim_names
from phyai.dispatch.reader import dtype_name, input_dims
from phyai.errors import CallError
from phyai.facts import Facts
from phyai.op import Op, Tensor


def static_facts(
    op: Op,
    *,
    weights: Mapping[str, Any],
    attrs: Mapping[str, Any],
    dtypes: Mapping[str, Any],
    dims: Mapping[str, int],
    present: Collection[str],
    extra: Mapping[str, Any],
) -> Facts:
    """The facts that every call of a site shares.

    Weights give dimensions and dtypes. Where ``extra`` has ``quant.*`` facts, weights may be in the form of their
    layout, with tensors of its own: those that do not look as the signature says are not read, and ``dims`` must
    give the dimensions that they would have shown.

    Raises:
        CallError: what is given does not satisfy the signature.
    """
    quantized = any(name.startswith("quant.") or ".quant." in name for name in extra)
    named = {t.name: t for t in op.weights}
    if not quantized:
        _check_plain(op, named, weights)
    for name in present:
        tensor = next((t for t in op.tensors if t.name == name), None)
        if tensor is not None and not tensor.optional:
            raise CallError(f"present={name}: {name} is not optional, every call gives it")
    plain = {
        name: w for name, w in weights.items()
        if name in named and w is not None and (not quantized or _as_signed(named[name], w, dims))
    }  # fmt: skip
    found = bind_dims(op.weights, {name: tuple(w.shape) for name, w in plain.items()})
    for name, size in dims.items():
        if found.get(name, size) != size:
            raise CallError(f"{name}={size} is given, but the weights have {name}={found[name]}")
    known = {**found, **dims, **dict.fromkeys(input_dims(op), 0)}
    hidden = [d for t in op.weights if not t.optional for d in dim_names(t) if d not in known]
    if hidden:
        raise CallError(f"dims must give {', '.join(dict.fromkeys(hidden))}: the weights as they lie do not show it")
    given = {**{name: dtype_name(w) for name, w in plain.items()}, **{n: str(d) for n, d in dtypes.items()}}
    return call_facts(op, dims={**found, **dims}, dtypes=given, attrs=attrs, present=present, extra=extra)


def _check_plain(op: Op, named: Mapping[str, Tensor], weights: Mapping[str, Any]) -> None:
    for name, weight in weights.items():
        if name not in named:
            raise CallError(f"{op.name} has no weight {name!r}; it has: {', '.join(named) or 'none'}")
        if weight is not None and not (hasattr(weight, "shape") and hasattr(weight, "dtype")):
            raise CallError(f"weight {name} is a {type(weight).__name__}; without quant.* facts it must be a tensor")
    missing = [t.name for t in op.weights if not t.optional and weights.get(t.name) is None]
    if missing:
        raise CallError(f"weight {missing[0]} is missing")


def _as_signed(tensor: Tensor, weight: Any, dims: Mapping[str, int]) -> bool:
    """Whether a weight of a quantized site looks as the signature says: rank, dtype, and the sizes in ``dims``."""
    if not (hasattr(weight, "shape") and hasattr(weight, "dtype")) or dtype_name(weight) not in tensor.dtypes:
        return False
    try:
        found = bind_dims((tensor,), {tensor.name: tuple(weight.shape)})
    except CallError:
        return False
    return all(dims.get(name, size) == size for name, size in found.items())


def signature(op: Op) -> str:
    """The signature in one line: ``x[...M K], weight[N K]: weight, bias[N]?: weight -> y[...M N]``."""

    def shown(tensor: Tensor) -> str:
        kind = "" if tensor.kind in ("input", "output") else f": {tensor.kind}"
        return f"{tensor.name}[{' '.join(tensor.dims)}]{'?' if tensor.optional else ''}{kind}"

    inputs = ", ".join(shown(t) for t in op.tensors if t.kind != "output")
    return f"{inputs} -> {', '.join(shown(t) for t in op.outputs) or 'nothing'}"
