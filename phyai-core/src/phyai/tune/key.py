"""Which calls a measurement speaks of: its key, and the condition under which a rule made of it holds.

A key has the op, the role, every static fact that tells its calls apart or that a candidate's predicate reads (scheme,
layout, dtypes, attributes, sizes) and, for each dynamic dimension, a bucket: the powers of two around the size that a
call site saw. The layer and the model are not in it unless a candidate reads them.

>>> bucket_of(1), bucket_of(50), bucket_of(64), bucket_of(968)
((1, 1), (33, 64), (33, 64), (513, 1024))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from phyai.catalog import Catalog
from phyai.composite import is_decomposition
from phyai.dims import dim_names
from phyai.dispatch.reader import input_dims
from phyai.environment import Environment
from phyai.facts import Facts, FactValue
from phyai.op import Op
from phyai.predicates import TRUE, Predicate, all_of, match, none_of

#: Facts that say where a call runs: the store and the stamp have them.
_ELSEWHERE = ("device.", "lib.")
_QUANT = ("quant.", "parts.")


def bucket_of(size: int) -> tuple[int, int]:
    """The bucket of a dynamic dimension: above one power of two, up to the next."""
    if size <= 1:
        return size, size
    high = 1 << (size - 1).bit_length()
    return high // 2 + 1, high


@attrs.frozen
class CallKey:
    """One kind of call. ``facts`` maps static facts to their values, None for one that is absent."""

    op: str
    facts: Mapping[str, FactValue | None]
    bucket: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, call: Mapping[str, FactValue], catalog: Catalog) -> CallKey:
        """The key of a call whose dimensions are all known."""
        op = catalog.op(str(call["op"]))
        dynamic = _dynamic(op, call)
        names = {name for name in call if _tells_apart(name)} - hidden_dims(op)
        names |= {f"dtype.{t.name}" for t in op.tensors if t.optional} | {f"attrs.{a.name}" for a in op.attributes}
        names |= {"role", "mode.capture"} | ({"quant.scheme"} if op.weights else set())
        names |= {name for name in _read(op, catalog) if not name.startswith((*_ELSEWHERE, "shape."))}
        if "quant.scheme" not in call:  # and then nothing else of quantization is there either
            names = {name for name in names if not name.startswith("quant.") or name == "quant.scheme"}
        names -= {"op", *dynamic, *(spec.name for spec in op.extra_facts)}
        facts = {name: call.get(name) for name in sorted(names)}
        return cls(op.name, facts, {name: bucket_of(int(call[name])) for name in sorted(dynamic)})  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        """The key as text: what is told apart first comes first.

        >>> CallKey("gemm", {"role": "expert", "shape.K": 64, "dtype.bias": None}, {"shape.M": (33, 64)}).text
        'gemm role=expert M=33..64 K=64 dtype.bias=null'
        """
        parts = [self.op]
        if "role" in self.facts:
            parts.append(f"role={_shown(self.facts['role'])}")
        parts += [
            f"{_short(n)}={low}..{high}" if low < high else f"{_short(n)}={low}"
            for n, (low, high) in self.bucket.items()
        ]
        rest = [n for n in self.facts if n != "role"]
        order = sorted(rest, key=lambda name: (not name.startswith("shape."), not name.startswith("quant."), name))
        return " ".join([*parts, *(f"{_short(name)}={_shown(self.facts[name])}" for name in order)])

    def conditions(self) -> dict[str, Any]:
        """The ``match:`` of a rule for these calls."""
        found: dict[str, Any] = {"op": self.op}
        sets: list[dict[str, Any]] = []
        for name, value in self.facts.items():
            if isinstance(value, frozenset):
                sets += [{name: element} for element in sorted(value)]
            else:
                found[name] = value
        found |= {name: f"{low}..{high}" if low < high else low for name, (low, high) in self.bucket.items()}
        return found | ({"all_of": sets} if sets else {})


def condition(
    key: CallKey, at: Facts, measured: Iterable[str], catalog: Catalog, environment: Environment
) -> Predicate:
    """When the rule of a measurement holds: for calls of its key that no other kernel than the measured ones can run.

    ``at`` are the facts of the call that was measured. A kernel that could not run there, but can for other sizes of
    the bucket, was not measured, and a rule must not put others before it.
    """
    own = match(key.conditions())
    known = set(measured)
    op = catalog.op(key.op)
    still_open = {*_dynamic(op, at), *(spec.name for spec in op.extra_facts)}
    static = Facts({name: value for name, value in at.items() if name not in still_open})
    denied = []
    for kernel in catalog.kernels_of(op.name):
        if kernel.id in known or is_decomposition(kernel):
            continue
        left = kernel.when.given(static, absent=_AllBut(still_open))
        if left == TRUE:  # ruled out by other than its capability: layout, capture, the policy
            continue
        denied.append(left)
    return all_of(own, none_of(*denied)) if denied else own


def where(environment: Environment) -> dict[str, FactValue]:
    """The conditions that keep a rule to the device that was measured."""
    facts = environment.device.facts()
    return {name: facts[name] for name in ("device.type", "device.arch", "device.name") if name in facts}


def hidden_dims(op: Op) -> frozenset[str]:
    """The facts of dimensions that neither inputs nor weights show, so that no call site knows them."""
    weights = {name for tensor in op.weights for name in dim_names(tensor)}
    return frozenset(f"shape.{d.name}" for d in op.dims if d.name not in weights | input_dims(op))


def _dynamic(op: Op, call: Mapping[str, FactValue]) -> tuple[str, ...]:
    """The dynamic dimensions that a call's inputs show."""
    shown = input_dims(op)
    return tuple(f"shape.{d.name}" for d in op.dims if d.dynamic and d.name in shown and f"shape.{d.name}" in call)


def _tells_apart(name: str) -> bool:
    return name.startswith(("shape.", "dtype.", "attrs.", *_QUANT))


def _read(op: Op, catalog: Catalog) -> set[str]:
    return {name for kernel in catalog.kernels_of(op.name) for p in kernel.conditions for name in p.facts}


class _AllBut:
    """Every name but some: facts that are known to be absent where they are not known."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name not in self._names


def _short(name: str) -> str:
    return name.removeprefix("shape.").removeprefix("attrs.")


def _shown(value: FactValue | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return "+".join(sorted(value)) if isinstance(value, frozenset) else str(value)
