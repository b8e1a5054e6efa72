"""The errors of a call that cannot be decided, with the diagnosis in their message."""

from __future__ import annotations

import attrs

from phyai.catalog import Catalog
from phyai.decision import Decision, Rejected
from phyai.errors import AmbiguousKernelError, NoKernelError, first_line
from phyai.kernel import Kernel
from phyai.policy import Policy, Rule

#: Facts that every settling line would repeat, and facts that change from call to call.
_WORTH_MATCHING = ("role", "model.family", "device.arch", "quant.scheme")
#: Kernels whose reasons fit in one line.
_SHOWN = 2


def nothing_left(decision: Decision, restriction: Rule | None, catalog: Catalog) -> NoKernelError:
    """No kernel may run the call. The message lists every candidate and why, those that the restriction allows first;
    the ``decision`` has every reason."""
    absent = catalog.lacks_backends
    if absent is not None:
        return NoKernelError(f"{_call(decision)}: {absent}", attrs.evolve(decision, failure=absent))
    why = "no kernel may run this call"
    if restriction is not None and restriction.restriction is not None:
        why = f"rule {restriction.ref} ({restriction.restriction}) leaves no kernel that can run this call"
    if not decision.candidates:
        why = "no installed backend has a kernel of this op; `phyai backends` shows what is installed"
    allowed = _allowed(decision, restriction)
    rejected = [*allowed, *(r for r in decision.rejected if r not in allowed)]
    lines = [f"{_call(decision)}: {why}", *(f"  {r.kernel}: [{r.stage.value}] {r.brief}" for r in rejected)]
    lines += [f"  part {name}: {part.failure}" for name, part in decision.parts.items() if part.failure]
    return NoKernelError("\n".join(lines), attrs.evolve(decision, failure=why))


def in_short(error: NoKernelError, policy: Policy) -> str:
    """One line of such an error: what it says first and, where a rule restricts the call, why the kernels that it
    allows cannot run it: some of them, where they are many."""
    line = first_line(error)
    decision = error.decision
    if not isinstance(decision, Decision) or decision.accepted:
        return line
    allowed = _allowed(decision, policy.aspects(decision.facts).restriction)
    reasons = [f"{r.kernel}: {r.brief}" for r in allowed[:_SHOWN]]
    more = [f"and {len(allowed) - _SHOWN} more"] if len(allowed) > _SHOWN else []
    return f"{line} ({'; '.join([*reasons, *more])})" if reasons else line


def _allowed(decision: Decision, rule: Rule | None) -> list[Rejected]:
    """What was found of the kernels that a rule restricts the call to."""
    if rule is None or rule.restriction is None:
        return []
    return [r for r in decision.rejected if rule.restriction.allows(r.kernel)]


def ambiguous(decision: Decision, tied: tuple[Kernel, ...]) -> AmbiguousKernelError:
    """Kernels tie for the first place. The message prints the policy line that would settle it."""
    names = " and ".join(kernel.id for kernel in tied)
    matched = {name: decision.facts[name] for name in _WORTH_MATCHING if name in decision.facts}
    conditions = ", ".join(f"{name}: {value}" for name, value in {"op": decision.op, **matched}.items())
    line = f"  - {{id: {decision.op.replace('_', '-')}-tie, match: {{{conditions}}}, prefer: [{tied[0].id}]}}"
    why = f"{names} tie (band {tied[0].band_on(decision.facts).name.lower()}) and no rule settles it"
    settle = f"{why}; add to `rules:` in the policy, with the one you want:\n{line}"
    return AmbiguousKernelError(f"{_call(decision)}: {settle}", attrs.evolve(decision, failure=settle))


def _call(decision: Decision) -> str:
    layer = decision.facts.get("layer") or decision.facts.get("role")
    return f"{decision.op} at {layer}" if layer else decision.op
