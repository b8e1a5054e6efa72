"""Ops: the named computations that kernels implement and models call.

An op is data: tensors with symbolic shapes, attributes, the facts that a call yields, real argument
shapes, and the tolerance that results are held to. This module imports no tensor library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from attrs import field, frozen

from phyai.facts import FactKind, FactSpec, FactValue

FLOATS: tuple[str, ...] = ("bf16", "fp16", "fp32", "fp64")


@frozen
class Tensor:
    """One tensor of a signature, with a symbolic shape (:mod:`phyai.dims`).

    ``kind`` is ``input`` (given to every call, positionally), ``weight`` (bound when the site is made),
    ``output``, or ``metadata`` (goes to ``plan``). ``mutated`` inputs are written by the call: they are results too.
    ``scratch`` (``"module:function"``) names the part of an input that a call may overwrite with anything, while the
    rest stays as it is: it is called as ``f(inputs)`` and gives a bool mask that broadcasts to the tensor.
    ``fill`` says how inputs are synthesized: ``normal``, ``uniform``, ``zeros``, ``ones``, ``near_one``,
    ``mask`` (bool, no row empty), ``positions``, ``ids``, ``slots``, ``scale``, ``cos_sin``; an op with needs of its
    own gives ``synthesize``.
    """

    name: str
    dims: tuple[str, ...]
    kind: str = "input"
    dtypes: tuple[str, ...] = FLOATS
    optional: bool = False
    mutated: bool = False
    scratch: str | None = None
    fill: str = "normal"
    doc: str = ""


@frozen
class Attr:
    """One attribute of a signature. Kernels must honour it or not be eligible.

    ``values`` are all that it may be; ``whole``, ``minimum`` and ``positive`` say which numbers. Absent (None) is
    allowed where it is the default.
    """

    name: str
    kind: FactKind
    default: Any
    doc: str
    values: tuple[Any, ...] | None = None
    whole: bool = False
    minimum: float | None = None
    positive: bool = False

    def allowed(self) -> str:
        """What it may be, in words.

        >>> Attr("window", FactKind.NUMBER, None, "", whole=True, minimum=1).allowed()
        'a whole number from 1 on, or absent'
        """
        absent = ", or absent" if self.default is None else ""
        if self.values is not None:
            return ", ".join(map(str, self.values)) + absent
        if self.kind is not FactKind.NUMBER:
            return {FactKind.FLAG: "true or false", FactKind.NAME: "a name"}.get(self.kind, str(self.kind)) + absent
        number = "a whole number" if self.whole else "a number"
        bound = " above 0" if self.positive else "" if self.minimum is None else f" from {self.minimum:g} on"
        return number + bound + absent

    def allows(self, value: Any) -> bool:
        """Whether it may have this value.

        >>> window = Attr("window", FactKind.NUMBER, None, "", whole=True, minimum=1)
        >>> [window.allows(value) for value in (None, 1, 0, 1.5, True, "one")]
        [True, True, False, False, False, False]
        """
        if value is None:
            return self.default is None
        if self.values is not None:
            return value in self.values
        if self.kind is not FactKind.NUMBER:
            return isinstance(value, {FactKind.FLAG: bool, FactKind.NAME: str}.get(self.kind, object))
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            return False
        number = float(value)
        whole = number.is_integer() or not self.whole
        return whole and not (self.positive and number <= 0) and (self.minimum is None or number >= self.minimum)


@frozen
class Dim:
    """One symbolic dimension. Dynamic ones vary from call to call (M, lengths)."""

    name: str
    doc: str
    dynamic: bool = False
    minimum: int = 1


@frozen
class ArgSpec:
    """Real arguments of an op, from a real model: shared by tests, benchmarks and tuning.

    ``dims`` gives every symbolic dimension, ``dtypes`` overrides the op's default per tensor, ``attrs``
    the attributes, ``present`` the optional tensors that are given. ``facts`` adds what the model says
    of the site (role, layer, model.family, quant.*).
    """

    name: str
    dims: Mapping[str, int]
    dtypes: Mapping[str, str] = field(factory=dict)
    attrs: Mapping[str, Any] = field(factory=dict)
    present: tuple[str, ...] = ()
    facts: Mapping[str, FactValue] = field(factory=dict)


@frozen
class Tolerance:
    """``|got - want| <= atol + rtol * |want| + row_rms * r`` against float64, per element, plus a bound on the
    relative Frobenius error; for one output dtype. r is the root mean square of the largest row of ``want``."""

    rtol: float
    atol: float
    relative_norm: float
    row_rms: float = 0.0


#: What rounding once to the output dtype and accumulating in float32 allows.
DEFAULT_TOLERANCE: Mapping[str, Tolerance] = {
    "fp64": Tolerance(1e-9, 1e-10, 1e-10),
    "fp32": Tolerance(1e-4, 1e-5, 1e-5),
    "fp16": Tolerance(1e-2, 1e-3, 2e-3),
    "bf16": Tolerance(4e-2, 8e-3, 8e-3),
}
#: What also allows rounding a term to the output dtype before an addition in which it may cancel.
SUM_TOLERANCE: Mapping[str, Tolerance] = {
    **DEFAULT_TOLERANCE,
    "fp16": Tolerance(1e-2, 4e-3, 2e-3),
    "bf16": Tolerance(4e-2, 3e-2, 8e-3),
}


@frozen
class Part:
    """One part of a composite op: a call of another op.

    ``weights`` maps that op's weight names to the composite's; ``attrs`` maps its attributes to the composite's
    attribute names, to constants, or to functions of those of the composite's dimensions that are the same in all calls
    of a site. ``dims`` maps its dimensions to the composite's, by name or by a function of them
    (``{"N": lambda d: 2 * d["I"]}``); those not named are the composite's of the same name. ``dtypes`` maps its tensors
    to the composite's tensors of the same dtype or to a dtype; those not named take the composite's main dtype.
    ``parts`` are those of its op, where that is composite itself. ``layer`` is what its layer has behind the
    composite's: its name when None, nothing when empty: it then stands for the whole.
    """

    name: str
    op: str
    weights: Mapping[str, str] = field(factory=dict)
    attrs: Mapping[str, Any] = field(factory=dict)
    dims: Mapping[str, str | Callable[[Mapping[str, int]], int]] = field(factory=dict)
    dtypes: Mapping[str, str] = field(factory=dict)
    parts: tuple[Part, ...] = ()
    layer: str | None = None


@frozen
class Op:
    """A named computation.

    ``doc`` states the mathematics as equivalent code. ``dims`` become the facts ``shape.<dim>``; every
    tensor's dtype becomes ``dtype.<tensor>`` (absent when an optional tensor is absent); every attribute
    ``attrs.<name>`` (absent when its value is None). ``extra_facts`` declares what else ``derive`` adds.
    ``parts`` and ``compose`` (``"module:function"``) make it composite: the decomposition, written once as
    ``compose(sites, facts) -> run``, where ``sites`` maps part names to call sites and ``run`` takes the
    op's inputs, ``out`` and ``state`` like any prepared kernel.
    ``chained``: it is decomposed into whatever call sites its caller chains (:class:`phyai.dispatch.Chain`).
    ``synthesize`` (``"module:function"``) is called as ``f(call, generator)`` after the generic synthesis of a call's
    tensors (:mod:`phyai.synthesize`) and replaces those of them that depend on each other.
    ``fit`` gives the nearest spec that a call can have, where dimensions, dtypes or attributes of the op follow from
    each other (a convolution's output length, heads that kv_heads divide); what fits comes back unchanged.
    ``contradiction`` says in words why a call with these facts, as far as they are known, cannot be, or None: what no
    kernel could compute is refused once, when a site is bound or called, and when ``phyai explain`` is asked.
    """

    name: str
    doc: str
    tensors: tuple[Tensor, ...]
    dims: tuple[Dim, ...]
    attributes: tuple[Attr, ...] = ()
    aliases: tuple[str, ...] = ()
    extra_facts: tuple[FactSpec, ...] = ()
    derive: Callable[[Mapping[str, FactValue]], Mapping[str, FactValue]] | None = None
    tolerance: Mapping[str, Tolerance] = field(factory=lambda: dict(DEFAULT_TOLERANCE))
    arg_specs: tuple[ArgSpec, ...] = ()
    parts: tuple[Part, ...] = ()
    compose: str | None = None
    chained: bool = False
    synthesize: str | None = None
    fit: Callable[[ArgSpec], ArgSpec] | None = None
    contradiction: Callable[[Mapping[str, FactValue]], str | None] | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.kind == "input")

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.kind == "weight")

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.kind == "output")

    @property
    def metadata(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.kind == "metadata")

    @property
    def composite(self) -> bool:
        return bool(self.parts)

    @property
    def decomposes(self) -> bool:
        """Whether a chain of other calls is a candidate beside kernels."""
        return self.composite or self.chained

    def fact_specs(self) -> tuple[FactSpec, ...]:
        """Every fact that a call of this op yields beyond the core's."""
        specs = [FactSpec(f"shape.{d.name}", FactKind.NUMBER, d.doc, d.dynamic, minimum=d.minimum) for d in self.dims]
        specs += [
            FactSpec(f"dtype.{t.name}", FactKind.NAME, f"dtype of {t.name}", values=t.dtypes) for t in self.tensors
        ]
        for a in self.attributes:
            names = tuple(str(v) for v in a.values) if a.values and a.kind is FactKind.NAME else None
            whole = all(isinstance(v, int) for v in (a.default, *(a.values or ())))
            specs.append(FactSpec(f"attrs.{a.name}", a.kind, a.doc, values=names, integer=whole))
        return (*specs, *self.extra_facts)
