"""Completing an incomplete question from the op's argument specs, and answering it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import attrs

from phyai.calls import call_facts, check_names, fill_dtypes
from phyai.catalog import Catalog
from phyai.decision import Decision
from phyai.dispatch.layouts import Layouts
from phyai.environment import Environment
from phyai.errors import CallError, NoKernelError
from phyai.explain.scheme import described, of_parts
from phyai.facts import Facts, canonical_dtype
from phyai.op import FLOATS, ArgSpec, Op
from phyai.policy import Policy
from phyai.resolver import resolve

#: What says which part of which model calls. Never assumed: a call without a role is a question of its own.
_IDENTITY = ("role", "layer", "phase", "model.", "quant.", "parts.")


def explain_call(
    op: str, given: Mapping[str, Any], catalog: Catalog, policy: Policy, environment: Environment
) -> Decision:
    """The decision for a call of which only ``given`` is known, with what was assumed to complete it.

    Where a weight is quantized and its layout is not given, it is chosen as for a site with these rows.

    ``given`` maps facts (``shape.M``, ``dtype.x``, ``role``, …) to values; None says that a fact is absent. A call
    that no kernel may run gives a decision too: its ``kernel`` is None and ``failure`` says why.

    Raises:
        DeclarationError: an unknown op.
        CallError: an unknown fact, or a value that the signature does not allow.
    """
    signature = catalog.op(op)
    facts, assumptions = complete(signature, given, catalog, environment)
    layouts = Layouts(catalog, policy, environment).of_facts(signature, facts)
    facts = facts.replace({fact: choice.layout for fact, choice in layouts.items()})
    assumptions += tuple(f"{fact}={choice.layout}: {choice.why}" for fact, choice in layouts.items())
    try:
        decision = resolve(facts, catalog, policy, environment, assumptions=assumptions)
    except NoKernelError as error:
        decision = cast("Decision", error.decision)
    return attrs.evolve(decision, layouts=layouts)


def complete(
    op: Op, given: Mapping[str, Any], catalog: Catalog, environment: Environment
) -> tuple[Facts, tuple[str, ...]]:
    """All facts of a call, and a sentence for each thing that was assumed.

    Dimensions, dtypes, attributes and optional tensors that are not given come from the argument spec that
    agrees best with what is given; where they follow from it (:attr:`phyai.op.Op.fit`), they are made to.
    """
    check_names(op, given, catalog.vocabulary_of(op.name))
    known = {name: canonical_dtype(str(v)) if name.startswith("dtype.") and v else v for name, v in given.items()}
    known = of_parts(op, known)
    spec = _best(op, known)
    meant = described(op, known)
    known |= meant
    try:
        facts = _filled(op, known, spec)
    except CallError as error:
        if spec is None or op.contradiction is None:
            raise
        raise CallError(f"{error}; what was not given is that of the argument spec {spec.name}") from None
    assumed = {name: value for name, value in facts.items() if name not in known and name != "op"}
    assumptions = environment.assumptions
    if spec is not None and assumed:
        shown = ", ".join(f"{name}={_shown(value)}" for name, value in sorted(assumed.items()))
        assumptions += (f"from the argument spec {spec.name}: {shown}",)
    if meant:
        shown = ", ".join(f"{name}={value}" for name, value in sorted(meant.items()))
        assumptions += (f"from the scheme that the other quant.* facts describe: {shown}",)
    if "mode.capture" not in known:
        facts = facts.replace({"mode.capture": False})
        assumptions += ("the call does not run inside a CUDA graph (mode.capture=false)",)
    return facts, assumptions


def _best(op: Op, known: Mapping[str, Any]) -> ArgSpec | None:
    """The spec that agrees with most of what is known and contradicts least of it; the earlier one on a tie."""

    def score(spec: ArgSpec) -> tuple[int, int]:
        facts = _spec_facts(op, spec)
        against = sum(1 for n, v in known.items() if n in facts and facts[n] != v and not n.startswith("shape."))
        against += sum(1 for n in facts if n.startswith(("quant.", "parts.")) and n not in known)
        agreeing = sum(1 for n, v in known.items() if n in facts and facts[n] == v)
        return -against, agreeing

    return max(op.arg_specs, key=score, default=None)


def _spec_facts(op: Op, spec: ArgSpec) -> Facts:
    return _call(op, attrs.evolve(spec, dtypes=spec.dtypes or _first_dtypes(op)))


def _first_dtypes(op: Op) -> dict[str, str]:
    return {t.name: t.dtypes[0] for t in op.tensors if not t.optional}


def _filled(op: Op, known: Mapping[str, Any], spec: ArgSpec | None) -> Facts:
    declared = {*(d.name for d in op.dims), *(a.name for a in op.attributes)}
    dims = {name: size for name, size in _named("shape.", known).items() if name in declared and size is not None}
    attributes = {name: value for name, value in _named("attrs.", known).items() if name in declared}
    own_dtypes = {name: dtype for name, dtype in _named("dtype.", known).items() if dtype is not None}
    gone = {name for name, dtype in _named("dtype.", known).items() if dtype is None}
    optional = {t.name for t in op.tensors if t.optional}

    def with_given(assumed: ArgSpec) -> ArgSpec:
        present = {*assumed.present, *(own_dtypes.keys() & optional)} - gone
        dtypes = {n: d for n, d in {**assumed.dtypes, **own_dtypes}.items() if n not in gone}
        return attrs.evolve(
            assumed,
            dims={**assumed.dims, **dims},
            dtypes=fill_dtypes(op, {n: d for n, d in dtypes.items() if n not in optional - present}, present),
            attrs={**assumed.attrs, **attributes},
            present=tuple(present),
        )

    assumed = spec or ArgSpec("", {})
    dtypes = dict(assumed.dtypes or _first_dtypes(op))
    if any(dtype in FLOATS for dtype in own_dtypes.values()):  # the others follow the one that is given
        dtypes = {n: d for n, d in dtypes.items() if canonical_dtype(d) not in FLOATS}
    call = with_given(
        attrs.evolve(assumed, dtypes=dtypes, facts={n: v for n, v in known.items() if n.startswith(_IDENTITY)})
    )
    if spec is not None and op.fit is not None:  # what is assumed follows from what is given, once that is allowed
        _call(attrs.evolve(op, contradiction=None), call)
        call = with_given(op.fit(call))
    facts = _call(op, call)
    return facts.replace({name: v for name, v in known.items() if name != "op"})


def _call(op: Op, spec: ArgSpec) -> Facts:
    return call_facts(op, dims=spec.dims, dtypes=spec.dtypes, attrs=spec.attrs, present=spec.present, extra=spec.facts)


def _named(prefix: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """The facts under ``prefix``, by the names that the signature has for them."""
    return {name.removeprefix(prefix): value for name, value in known.items() if name.startswith(prefix)}


def _shown(value: Any) -> str:
    return "{" + ", ".join(sorted(value)) + "}" if isinstance(value, frozenset) else str(value)
