"""What is known of a site's calls when it is bound."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from phyai.calls import call_facts
from phyai.dispatch.reader import dtype_name
from phyai.errors import CallError
from phyai.facts import Facts
from phyai.op import Op, Tensor, bind_dims


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

    Weights give dimensions and dtypes. A quantized weight has its layout's own tensors, shapes and dtypes:
    where ``extra`` has ``quant.*`` facts, only tensors that look as the signature says are read, and the
    dimensions of the others must be in ``dims``.

    Raises:
        CallError: what is given does not satisfy the signature.
    """
    quantized = any(name.startswith("quant.") or ".quant." in name for name in extra)
    named = {t.name: t for t in op.weights}
    unknown = [name for name in weights if name not in named and not quantized]
    if unknown:
        raise CallError(f"{op.name} has no weight {unknown[0]!r}; it has: {', '.join(named) or 'none'}")
    missing = [t.name for t in op.weights if not t.optional and t.name not in weights and not quantized]
    if missing and weights:
        raise CallError(f"weight {missing[0]} is missing")
    for name in present:
        tensor = next((t for t in op.tensors if t.name == name), None)
        if tensor is not None and not tensor.optional:
            raise CallError(f"present={name}: {name} is not optional, every call gives it")
    plain = {n: w for n, w in weights.items() if n in named and w is not None and _fits(named[n], w, quantized)}
    found = bind_dims(op.weights, {name: tuple(w.shape) for name, w in plain.items()})
    for name, size in dims.items():
        if found.get(name, size) != size:
            raise CallError(f"{name}={size} is given, but the weights have {name}={found[name]}")
    given = {**{name: dtype_name(w) for name, w in plain.items()}, **{n: str(d) for n, d in dtypes.items()}}
    return call_facts(op, dims={**found, **dims}, dtypes=given, attrs=attrs, present=present, extra=extra)


def _fits(tensor: Tensor, weight: Any, quantized: bool) -> bool:
    """Whether a weight is to be read by the signature: always, unless it belongs to a quantized site."""
    if not quantized:
        return True
    return hasattr(weight, "dtype") and dtype_name(weight) in tensor.dtypes and len(weight.shape) == len(tensor.dims)


def signature(op: Op) -> str:
    """The signature in one line: ``x[...M K], weight[N K]: weight, bias[N]?: weight -> y[...M N]``."""

    def shown(tensor: Tensor) -> str:
        kind = "" if tensor.kind in ("input", "output") else f": {tensor.kind}"
        return f"{tensor.name}[{' '.join(tensor.dims)}]{'?' if tensor.optional else ''}{kind}"

    inputs = ", ".join(shown(t) for t in op.tensors if t.kind != "output")
    return f"{inputs} -> {', '.join(shown(t) for t in op.outputs) or 'nothing'}"
