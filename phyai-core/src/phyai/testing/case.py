"""One call that the kit tries: small plain data, so that it can shrink, be printed, and be run again.

>>> from phyai.ops.gemm import OP
>>> case = Case.of(OP, OP.arg_specs[-1])
>>> case.to_json(OP)
{'dims': {'M': 2, 'N': 10, 'K': 6}, 'dtypes': 'fp64', 'present': ['bias']}
>>> Case.from_json(OP, case.to_json(OP)) == case
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict, evolve, field, fields, frozen

from phyai.calls import attributes, call_facts, fill_dtypes
from phyai.composite import form_of
from phyai.errors import CallError, PhyAIError
from phyai.facts import Facts, FactValue, canonical_dtype
from phyai.op import FLOATS, ArgSpec, Op
from phyai.quant.scheme import QuantScheme, TensorQuant

#: How the tensors of a call lie in memory: contiguous; one element into their storage; with gaps between rows; with
#: the last two dimensions swapped; every second element.
MEMORY = ("dense", "offset", "rows", "transposed", "strided")
#: What the values are like: about 1; about 1/1024, where an epsilon counts; all zero.
VALUES = ("normal", "small", "zeros")

_CONTENT = ("dims", "dtypes", "attrs", "present", "facts", "scheme", "layout", "params")


@frozen
class Case:
    """The arguments of one call, and the form in which they are given.

    ``dims``, ``dtypes`` (of every tensor that is there), ``attrs`` (that differ from their defaults), ``present`` and
    ``facts`` are those of an argument spec. ``scheme`` and ``layout`` describe a quantized weight (of a composite op
    all that can be), ``params`` what a policy gives the kernel. ``lead`` are the leading dimensions that a ``...M``
    dimension stands for (None: one).
    ``alias``: floating inputs of one shape share their memory, where nothing is mutated.
    """

    dims: Mapping[str, int]
    dtypes: Mapping[str, str]
    attrs: Mapping[str, Any] = field(factory=dict)
    present: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(factory=dict)
    scheme: QuantScheme | None = None
    layout: str | None = None
    params: Mapping[str, Any] = field(factory=dict)
    lead: tuple[int, ...] | None = None
    memory: str = "dense"
    values: str = "normal"
    alias: bool = False
    seed: int = 0

    @classmethod
    def of(cls, op: Op, spec: ArgSpec) -> Case:
        """The call that an argument spec describes, without what it says of the model."""
        dtypes = _all_dtypes(op, spec.dtypes, spec.present)
        return cls(dict(spec.dims), dtypes, _changed(op, spec.attrs), tuple(spec.present))

    def spec(self) -> ArgSpec:
        return ArgSpec("conformance", self.dims, self.dtypes, self.attrs, self.present, self.facts)

    def fitted(self, op: Op) -> Case:
        """The nearest call whose parts agree (see :attr:`phyai.op.Op.fit`)."""
        case = self
        if op.fit is not None:
            spec = op.fit(self.spec())
            dtypes = _all_dtypes(op, spec.dtypes, spec.present)
            attributes = _changed(op, spec.attrs)
            case = evolve(self, dims=spec.dims, dtypes=dtypes, attrs=attributes, present=spec.present)
        return case if case.lead is None or _fits(case, op) else evolve(case, lead=None)

    def quantized(self, op: Op, scheme: QuantScheme | None, layout: str | None) -> Case:
        """This call with weights quantized by ``scheme`` in ``layout``, or with ordinary ones."""
        quant, usual = scheme.weight if scheme is not None else None, self.dtypes.get(op.outputs[0].name, "bf16")
        stored = usual if quant is None else quant.dtype if quant.bits == 8 else "uint8"
        dtypes = {**self.dtypes, **dict.fromkeys(quantizable(op), stored)}
        return evolve(self, scheme=scheme, layout=layout, dtypes=dtypes)

    def call_facts(self, op: Op, environment: Mapping[str, Any]) -> Facts | None:
        """The call's facts on a machine, or None where no such call exists."""
        quant = quant_facts(op, self.scheme, self.layout)
        extra = {**environment, "mode.capture": False, **self.facts, **quant}
        try:
            return call_facts(
                op, dims=self.dims, dtypes=self.dtypes, attrs=self.attrs, present=self.present, extra=extra
            )
        except CallError:
            return None

    # Reading and writing

    def to_json(self, op: Op) -> dict[str, Any]:
        """Plain data, without what is as usual."""
        found: dict[str, Any] = {"dims": dict(self.dims), "dtypes": self._short_dtypes(op)}
        more = {"attrs": _changed(op, self.attrs), "present": list(self.present), "facts": dict(self.facts)}
        found |= {name: value for name, value in more.items() if value}
        if self.scheme is not None:
            found |= {"scheme": _scheme_json(self.scheme), "layout": self.layout}
        for part in fields(Case):
            value = getattr(self, part.name)
            if part.name not in _CONTENT and value != part.default:
                found[part.name] = list(value) if isinstance(value, tuple) else value
        return found | ({"params": dict(self.params)} if self.params else {})

    @classmethod
    def from_json(cls, op: Op, data: Any) -> Case:
        """The case that :meth:`to_json` wrote.

        Raises:
            PhyAIError: the data does not describe a call of ``op``.
        """
        try:
            return cls._read(op, dict(data))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise PhyAIError(f"no call of {op.name} can be read from {data!r}: {error}") from None

    @classmethod
    def _read(cls, op: Op, data: dict[str, Any]) -> Case:
        unknown = set(data) - {part.name for part in fields(cls)}
        if unknown:
            raise ValueError(f"unknown {', '.join(sorted(unknown))}")
        present = tuple(data.get("present", ()))
        missing = [name for name in ("dims", "dtypes") if name not in data]
        if missing:
            raise ValueError(f"it does not say {' and '.join(missing)}")
        given = data["dtypes"]
        dtypes = {_first_float(op): given} if isinstance(given, str) else dict(given)
        scheme = data.get("scheme")
        lead = data.get("lead")
        data |= {
            "dims": {str(name): int(size) for name, size in data["dims"].items()},
            "dtypes": _all_dtypes(op, dtypes, present),
            "attrs": _changed(op, data.get("attrs", {})),
            "present": present,
            "scheme": None if scheme is None else _scheme_of(scheme),
            "lead": None if lead is None else tuple(map(int, lead)),
        }
        case = cls(**data)
        if case.memory not in MEMORY or case.values not in VALUES:
            raise ValueError(f"memory is one of {', '.join(MEMORY)}; values one of {', '.join(VALUES)}")
        call_facts(op, dims=case.dims, dtypes=case.dtypes, attrs=case.attrs, present=present)
        return case

    def _short_dtypes(self, op: Op) -> dict[str, str] | str:
        """One name where all else follows from it."""
        first = _first_float(op)
        main = self.dtypes.get(first)
        if main is not None and _all_dtypes(op, {first: main}, self.present) == dict(self.dtypes):
            return main
        return dict(self.dtypes)


def quantizable(op: Op) -> dict[str, str]:
    """The weights that can hold codes, each with what stands before ``quant.`` in its facts.

    >>> from phyai.ops.gated_mlp import OP
    >>> quantizable(OP)
    {'gate_up': 'parts.gate_up.', 'down': 'parts.down.'}
    """
    return {t.name: form_of(op, t.name) for t in op.weights if "int8" in t.dtypes}


def quant_facts(op: Op, scheme: QuantScheme | None, layout: str | None) -> dict[str, FactValue]:
    """What ``scheme`` and ``layout`` say of a call whose weights have them."""
    said: dict[str, FactValue] = dict(scheme.facts()) if scheme is not None else {}
    if layout is not None:
        said["quant.layout"] = layout
    return {prefix + name: value for prefix in quantizable(op).values() for name, value in said.items()}


def _all_dtypes(op: Op, given: Mapping[str, str], present: tuple[str, ...]) -> dict[str, str]:
    """A dtype for every tensor that a call has; bf16 is the main one where nothing is given."""
    first = _first_float(op)
    named = {name: canonical_dtype(dtype) for name, dtype in given.items()}
    if not any(dtype in FLOATS for dtype in named.values()):
        allowed = next(t.dtypes for t in op.tensors if t.name == first)
        named.setdefault(first, "bf16" if "bf16" in allowed else allowed[0])
    filled = fill_dtypes(op, named, present)
    optional = {t.name for t in op.tensors if t.optional and t.name not in present}
    return {name: dtype for name, dtype in filled.items() if name not in optional}


def _first_float(op: Op) -> str:
    return next((t.name for t in op.tensors if t.dtypes[0] in FLOATS), op.tensors[0].name)


def _changed(op: Op, given: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that are not as they are by default."""
    usual = attributes(op, {})
    return {name: value for name, value in given.items() if name not in usual or value != usual[name]}


def _fits(case: Case, op: Op) -> bool:
    """Whether ``lead`` still stands for the leading dimension."""
    import math

    dim = variadic_dim(op)
    return dim is not None and case.lead is not None and math.prod(case.lead) == case.dims.get(dim)


def variadic_dim(op: Op) -> str | None:
    """The dimension that may stand for several: that of the first input which has one."""
    return next((d.removeprefix("...") for t in op.inputs for d in t.dims if d.startswith("...")), None)


def _scheme_json(scheme: QuantScheme) -> dict[str, Any]:
    return asdict(scheme, filter=lambda part, value: value != part.default)


def _scheme_of(data: Mapping[str, Any]) -> QuantScheme:
    parts: dict[str, Any] = dict(data)
    for name in ("weight", "input", "output"):
        if parts.get(name) is not None:
            fields = dict(parts[name])
            if fields.get("block_shape"):
                fields["block_shape"] = tuple(fields["block_shape"])
            parts[name] = TensorQuant(**fields)
    return QuantScheme(**parts)
