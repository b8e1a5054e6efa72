"""``resolve(facts, catalog, policy, environment) -> Decision``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from phyai.catalog import Catalog
from phyai.composite import is_decomposition
from phyai.decision import Candidate, Decision
from phyai.environment import Environment
from phyai.errors import NoKernelError
from phyai.facts import Facts
from phyai.kernel import Band, Kernel
from phyai.op import Op
from phyai.policy import Aspects, Policy, kernel_matches
from phyai.predicates import Predicate
from phyai.resolver.failure import ambiguous, nothing_left
from phyai.resolver.fallback import environment_facts, references, serving_backends, where
from phyai.resolver.judging import Judged, judge
from phyai.resolver.ordering import Order, order
from phyai.resolver.parts import Parts, resolve_parts

NOTHING: Mapping[str, str] = MappingProxyType({})


def resolve(
    facts: Facts,
    catalog: Catalog,
    policy: Policy,
    environment: Environment,
    *,
    failed: Mapping[str, str] = NOTHING,
    assumptions: tuple[str, ...] = (),
    parts: Parts | None = None,
) -> Decision:
    """Decide one call. Pure: the same arguments give an equal decision.

    ``facts`` must hold ``op``; ``device.*`` and ``lib.*`` come from ``environment`` unless ``facts`` has them.
    ``failed`` maps kernels that failed on this machine to what their rejection says. ``assumptions`` are handed on.
    ``parts`` are those of a chained op, which its caller knows.

    Raises:
        NoKernelError: no kernel may run the call; its ``decision`` is the whole diagnosis.
        AmbiguousKernelError: two kernels tie for the first place.
        DeclarationError: the op is unknown.

    >>> from phyai.environment import Device
    >>> from phyai.kernel import Capture, Numerics
    >>> from phyai.plugins import Plugin, PluginStatus
    >>> from phyai.predicates import match
    >>> def declared(id, band, when):
    ...     return Kernel(id=id, op="gemm", when=match(when), prepare=print, band=band,
    ...                   capture=Capture.SAFE, numerics=Numerics(reproducible=True))
    >>> plain = declared("mine.gemm", Band.GENERAL, {})
    >>> tuned = declared("mine.gemm.k128", Band.OPTIMIZED, {"shape.K": "%128"})
    >>> catalog = Catalog.build([Plugin(PluginStatus("mine"), kernels=(plain, tuned))])
    >>> decision = resolve(Facts({"op": "gemm", "shape.K": 100}), catalog, Policy(), Environment(Device("cpu")))
    >>> decision.kernel.id, decision.rejected[0].reason
    ('mine.gemm', 'shape.K=100 is not a multiple of 128')
    """
    op = catalog.op(str(facts["op"]))
    facts = environment_facts(facts, environment).replace({"op": op.name})
    aspects = policy.aspects(facts)
    if parts is None:
        parts = resolve_parts(op, facts, catalog, policy, environment) if op.composite else Parts()
    judged = judge(op, facts, aspects, catalog, policy, parts, failed)
    base = Decision(
        op=op.name,
        facts=facts,
        kernel=None,
        diagnosis=judged.rejected,
        decided_by="capability",
        matched=tuple(rule.ref for rule in aspects.matched),
        assumptions=assumptions,
        warnings=tuple(f"{kernel}: {reason}" for kernel, reason in failed.items()),
        parts=parts.decisions,
    )
    if not judged.eligible:
        raise nothing_left(base, aspects.restriction, catalog)
    ranking = order(judged.eligible, facts, aspects, policy.defaults.ties, parts, judged.fallback)

    def diagnosis() -> tuple[Candidate, ...]:
        return (*ranking.accepted(), *judged.rejected())

    if ranking.tied:
        raise ambiguous(attrs.evolve(base, diagnosis=diagnosis), ranking.tied)
    chosen = ranking.kernels[0]
    params, ignored = _params(chosen, aspects)
    only_reference = _only_reference(op, chosen, aspects, judged, catalog, facts)
    warned = only_reference if policy.fallback == "warn" else None
    decision = attrs.evolve(
        base,
        kernel=chosen,
        diagnosis=diagnosis,
        decided_by=_decided_by(ranking, judged, aspects),
        params=params,
        warnings=(*base.warnings, *judged.warnings, *ignored, *filter(None, (warned,))),
        only_reference=warned,
    )
    if only_reference and policy.fallback == "error":
        failure = f"{only_reference}; defaults.fallback: error refuses that"
        raise NoKernelError(failure, attrs.evolve(decision, kernel=None, failure=failure))
    return decision


def _params(kernel: Kernel, aspects: Aspects) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parameters of the chosen kernel: declared defaults under what rules give; and what it does not declare."""
    declared = {p.name: p for p in kernel.params}
    params = {name: p.default for name, p in declared.items() if p.default is not None}
    ignored = []
    for name, (value, rule) in aspects.params(kernel.id).items():
        if name in declared:
            params[name] = value
        else:
            ignored.append(f"{kernel.id} has no parameter {name!r}, which rule {rule.ref} gives; it has no effect")
    return params, tuple(ignored)


def _only_reference(
    op: Op, chosen: Kernel, aspects: Aspects, judged: Judged, catalog: Catalog, facts: Facts
) -> str | None:
    """The sentence to warn with (or refuse) when only reference kernels are left though a backend serves the device."""
    if aspects.restriction is not None or is_decomposition(chosen):
        return None  # a rule asked for it; or each part has been through this already
    if any(k.band_on(facts) is not Band.REFERENCE for k in judged.eligible):
        return None
    if chosen.id not in references(catalog.kernels_of(op.name), facts):
        return None
    if aspects.fallback is not None and any(kernel_matches(p, chosen.id) for p in aspects.fallback.fallback):
        return None
    serving = serving_backends(catalog.kernels, where(facts))
    if not serving:
        return None
    verb = "serves" if len(serving) == 1 else "serve"
    return f"{op.name}: only {chosen.id} is left, although {' and '.join(serving)} {verb} this device"


def _decided_by(ranking: Order, judged: Judged, aspects: Aspects) -> str:
    """The layer whose say put the first kernel there: a restriction's where only it left others out."""
    if judged.fallback:
        rule = aspects.fallback
        return str(rule.layer) if rule is not None and judged.fallback == rule.fallback else "defaults"
    if judged.narrowed and aspects.restriction is not None and len(ranking.kernels) == 1:
        return str(aspects.restriction.layer)
    return ranking.decided_by


def reads(op: Op, facts: Facts, catalog: Catalog, policy: Policy) -> tuple[Predicate, ...]:
    """Every predicate that a decision for a call with ``facts``, as far as they are known, may depend on:
    the kernels' and the rules'. Parts of a composite op have their own: see :func:`phyai.composite.part_facts`."""
    rules = policy.candidates(facts)
    declared = (condition for kernel in catalog.kernels_of(op.name) for condition in kernel.conditions)
    return (*declared, *(rule.match for rule in rules))
