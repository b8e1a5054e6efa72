"""Which kernels of an op are left for a call: capability and the like, then what the policy restricts to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import attrs

from phyai.catalog import Catalog
from phyai.composite import as_resolved, is_decomposition
from phyai.decision import Rejected, RuleRef, Stage
from phyai.facts import Facts
from phyai.kernel import Kernel
from phyai.op import Op
from phyai.policy import Aspects, NumericsDemand, Policy, Restriction, Rule, kernel_matches
from phyai.resolver.eligibility import Verdict, examiner
from phyai.resolver.fallback import references
from phyai.resolver.parts import Parts


@attrs.define
class Judged:
    """The kernels that may run a call, and for the others how to say why not."""

    eligible: list[Kernel]
    verdicts: list[Verdict]
    narrowed: bool = False  # the restriction took away a kernel that could have run
    fallback: tuple[str, ...] = ()  # patterns to which the restriction was relaxed
    warnings: tuple[str, ...] = ()

    def rejected(self) -> tuple[Rejected, ...]:
        return tuple(verdict() for verdict in self.verdicts)


def judge(
    op: Op, facts: Facts, aspects: Aspects, catalog: Catalog, policy: Policy, parts: Parts, failed: Mapping[str, str]
) -> Judged:
    """Every kernel of the op: eligible, or rejected with the first reason met."""
    objection = examiner(facts, *_demand(aspects, policy))
    able: list[Kernel] = []
    verdicts: list[Verdict] = []
    for kernel in catalog.kernels_of(op.name):
        if op.decomposes:
            if is_decomposition(kernel) and not parts.problem:
                kernel = as_resolved(kernel, parts.decisions)
            verdict = objection(kernel) or parts.objection(kernel, aspects)
        else:
            verdict = objection(kernel)
        if verdict is None and kernel.id in failed:
            verdict = partial(Rejected, kernel.id, Stage.PREPARE, failed[kernel.id])
        if verdict is None:
            able.append(kernel)
        else:
            verdicts.append(verdict)
    rule = aspects.restriction
    if rule is None or rule.restriction is None:
        return Judged(able, verdicts)
    allowed = [k for k in able if _allows(rule, rule.restriction, k, parts)]
    warnings: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    relaxed = allowed
    if able and not allowed:
        relaxed, warnings, patterns = _relax(rule, facts, aspects, policy, catalog.kernels_of(op.name), able)
    kept = {k.id for k in relaxed}
    why = f"not among what rule {rule.ref} allows ({rule.restriction})"
    inner = f"{why}: its parts run {', '.join(dict.fromkeys(parts.kernel_ids))}; a rule without `op` reaches them too"
    outside = [
        partial(Rejected, k.id, Stage.RESTRICTION, inner if is_decomposition(k) else why, rule.ref)
        for k in able
        if k.id not in kept
    ]
    return Judged(relaxed, [*outside, *verdicts], bool(outside), patterns, warnings)


def _demand(aspects: Aspects, policy: Policy) -> tuple[NumericsDemand | None, RuleRef | None]:
    if aspects.numerics is not None:
        return aspects.numerics.numerics, aspects.numerics.ref
    return policy.defaults.numerics, None


def _allows(rule: Rule, restriction: Restriction, kernel: Kernel, parts: Parts) -> bool:
    """A decomposition is allowed by its own id, or when every kernel that its parts resolve to is, or when they keep to
    the rule by themselves (:attr:`phyai.resolver.parts.Parts.held`)."""
    if restriction.allows(kernel.id):
        return True
    if is_decomposition(kernel) and rule.ref in parts.held:
        return True
    inner = parts.kernel_ids if is_decomposition(kernel) else ()
    return bool(inner) and all(restriction.allows(part) for part in inner)


def _relax(
    rule: Rule, facts: Facts, aspects: Aspects, policy: Policy, kernels: Sequence[Kernel], able: list[Kernel]
) -> tuple[list[Kernel], tuple[str, ...], tuple[str, ...]]:
    """What a restriction that leaves nothing usable falls back to, with a warning that says so. ``kernels`` are all of
    the op, ``able`` those that can run the call."""
    if rule.restriction is None or rule.restriction.pin:
        return [], (), ()
    if aspects.fallback is not None:
        patterns = aspects.fallback.fallback
        named = [k for k in able if any(kernel_matches(p, k.id) for p in patterns)]
        if named:
            why = f"rule {rule.ref} leaves nothing usable; fell back as rule {aspects.fallback.ref} says"
            return named, (why,), patterns
    if policy.relaxes_restrictions:
        plain = references(kernels, facts)
        reference = [k for k in able if k.id in plain]
        why = f"rule {rule.ref} leaves nothing usable; relaxed to a reference kernel by defaults.fallback: reference"
        return reference, (why,), ("*",)
    return [], (), ()
