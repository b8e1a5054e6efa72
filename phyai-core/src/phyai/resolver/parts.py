"""The parts of a composite op: what they resolve to, and whether their rules rule fusion out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import attrs

from phyai.catalog import Catalog
from phyai.composite import is_decomposition, leaves, part_facts, standing
from phyai.decision import Decision, Rejected, RuleRef, Stage
from phyai.environment import Environment
from phyai.errors import NoKernelError
from phyai.facts import Facts
from phyai.kernel import Kernel
from phyai.op import Op
from phyai.policy import Aspects, Layer, NumericsDemand, Policy, Rule, kernel_matches
from phyai.resolver.eligibility import Verdict
from phyai.resolver.failure import in_short

_WILD = frozenset("*?[")


@attrs.frozen
class Parts:
    """Decisions by part name. ``ban`` is the strongest rule on a part that rules fusion out, with the part's
    name; ``problem`` says which part has no kernel, if one has none. ``held`` are the rules that every call of a
    chain is held to by itself, or the part that stands for the ``whole``."""

    decisions: Mapping[str, Decision] = attrs.field(factory=dict)
    ban: tuple[str, Rule] | None = None
    problem: str = ""
    held: frozenset[RuleRef] = frozenset()
    whole: Mapping[str, Decision] = attrs.field(factory=dict)

    @property
    def kernel_ids(self) -> tuple[str, ...]:
        return tuple(kernel.id for kernel in leaves(self.decisions).values())

    def names(self, rule: Rule) -> tuple[str, ...]:
        """The kernels that a rule on the whole has to name in order to name the chain: all, or those of the part that
        stands for the whole where the rule matches that as well."""
        return tuple(k.id for k in leaves(self.whole).values()) if rule.ref in self.held else self.kernel_ids

    def objection(self, kernel: Kernel, aspects: Aspects) -> Verdict | None:
        """Why a kernel of the composite op is out on account of its parts, or None."""
        if is_decomposition(kernel):
            return partial(Rejected, kernel.id, Stage.PARTS, self.problem) if self.problem else None
        if self.ban is None:
            return None
        part, rule = self.ban
        if any(r.strength >= rule.strength and _allows_fusing(r, kernel) for r in aspects.matched):
            return None
        said = rule.restriction or "its numerics"
        reason = (
            f"fusing would bypass rule {rule.ref} on part {part} ({said}); "
            f"a rule on {kernel.op} that names {kernel.id}, in layer {rule.layer} with priority {rule.priority} "
            f"or above, would allow it"
        )
        return partial(Rejected, kernel.id, Stage.PARTS, reason, rule.ref)


def resolve_parts(op: Op, facts: Facts, catalog: Catalog, policy: Policy, environment: Environment) -> Parts:
    """Decide every part of a composite op as a call of its own."""
    from phyai.resolver.decide import resolve

    decisions: dict[str, Decision] = {}
    problem = ""
    for part in op.parts:
        own = part_facts(op, part, catalog.op(part.op), facts)
        try:
            decisions[part.name] = resolve(own, catalog, policy, environment)
        except NoKernelError as error:
            if isinstance(error.decision, Decision):
                decisions[part.name] = error.decision
            problem = problem or f"its part {part.name} ({part.op}) has no kernel: {in_short(error, policy)}"
    whole = standing(op, decisions)
    held = frozenset(ref for decision in whole.values() for ref in decision.matched)
    return Parts(decisions, _strongest(_inside(op, facts, catalog, policy)), problem, held, whole)


def chained_parts(calls: Mapping[str, Facts], catalog: Catalog, policy: Policy, role: object = None) -> Parts:
    """What the rules on the call sites of a chain (their facts by name), and on their parts, mean for it and for fused
    kernels.

    A restriction that matches every call of the chained op's own ``role`` restricts those, so the chain keeps to it.
    """
    bans: list[tuple[str, Rule]] = []
    held: frozenset[RuleRef] | None = None
    for name, facts in calls.items():
        aspects = policy.aspects(facts)
        bans += ((name, rule) for rule in _binding(aspects))
        inside = _inside(catalog.op(str(facts["op"])), facts, catalog, policy)
        bans += ((f"{name}, part {part}", rule) for part, rule in inside)
        if facts.get("role") == role:
            matched = frozenset(rule.ref for rule in aspects.matched)
            held = matched if held is None else held & matched
    return Parts(ban=_strongest(bans), held=held or frozenset())


def _inside(op: Op, facts: Facts, catalog: Catalog, policy: Policy) -> Iterator[tuple[str, Rule]]:
    """The rules that a kernel of the whole would not be held to, each with the part on which it is, however deep."""
    for part in op.parts:
        part_op = catalog.op(part.op)
        own = part_facts(op, part, part_op, facts)
        yield from ((part.name, rule) for rule in _binding(policy.aspects(own)))
        yield from ((f"{part.name}.{inner}", rule) for inner, rule in _inside(part_op, own, catalog, policy))


def _strongest(bans: Iterable[tuple[str, Rule]]) -> tuple[str, Rule] | None:
    """The first of the strongest."""
    return max(bans, key=lambda ban: ban[1].strength, default=None)


def _binding(aspects: Aspects) -> tuple[Rule, ...]:
    """The rules in force on a part that a fused kernel would not be held to."""
    numerics = aspects.numerics if aspects.numerics and aspects.numerics.numerics != NumericsDemand() else None
    return tuple(rule for rule in (aspects.restriction, numerics) if rule is not None)


def _allows_fusing(rule: Rule, kernel: Kernel) -> bool:
    """Whether a rule says that the kernel may do without what holds for the parts; timings say no such thing."""
    return rule.layer is not Layer.TUNING and _names(rule, kernel)


def _names(rule: Rule, kernel: Kernel) -> bool:
    """Whether a rule names the kernel: by its id, or by a glob that spells out backend and op."""
    patterns = rule.restriction.kernels if rule.restriction else rule.prefer
    return any(kernel_matches(p, kernel.id) and not _WILD & set("".join(p.split(".")[:2])) for p in patterns)
