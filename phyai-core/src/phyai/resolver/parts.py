"""The parts of a composite op: what they resolve to, and whether their rules rule fusion out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import attrs

from phyai.catalog import Catalog
from phyai.composite import chosen, is_decomposition, part_facts
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
    chain is held to by itself."""

    decisions: Mapping[str, Decision] = attrs.field(factory=dict)
    ban: tuple[str, Rule] | None = None
    problem: str = ""
    held: frozenset[RuleRef] = frozenset()

    @property
    def kernels(self) -> dict[str, Kernel]:
        return chosen(self.decisions)

    @property
    def kernel_ids(self) -> tuple[str, ...]:
        return tuple(kernel.id for kernel in self.kernels.values())

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
    ban: tuple[str, Rule] | None = None
    problem = ""
    for part in op.parts:
        own = part_facts(op, part, catalog.op(part.op), facts)
        for name, rule in _bans(part.name, own, catalog, policy):
            if ban is None or rule.strength > ban[1].strength:
                ban = (name, rule)
        try:
            decisions[part.name] = resolve(own, catalog, policy, environment)
        except NoKernelError as error:
            if isinstance(error.decision, Decision):
                decisions[part.name] = error.decision
            problem = problem or f"its part {part.name} ({part.op}) has no kernel: {in_short(error, policy)}"
    return Parts(decisions, ban, problem)


def chained_parts(calls: Mapping[str, Facts], catalog: Catalog, policy: Policy, role: object = None) -> Parts:
    """What the rules on the call sites of a chain (their facts by name) mean for it and for fused kernels.

    A restriction that matches every call of the chained op's own ``role`` restricts those, so the chain keeps to it.
    """
    ban: tuple[str, Rule] | None = None
    held: frozenset[RuleRef] | None = None
    for name, facts in calls.items():
        for whose, rule in _bans(name, facts, catalog, policy):
            if ban is None or rule.strength > ban[1].strength:
                ban = (whose, rule)
        if facts.get("role") == role:
            matched = frozenset(rule.ref for rule in policy.aspects(facts).matched)
            held = matched if held is None else held & matched
    return Parts(ban=ban, held=held or frozenset())


def _bans(name: str, facts: Facts, catalog: Catalog, policy: Policy) -> Iterator[tuple[str, Rule]]:
    """The rules in force on a part, and on the parts of it, each with the name of what it is in force on."""
    yield from ((name, rule) for rule in _binding(policy.aspects(facts)))
    op = catalog.op(str(facts["op"]))
    for part in op.parts:
        yield from _bans(f"{name}.{part.name}", part_facts(op, part, catalog.op(part.op), facts), catalog, policy)


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
