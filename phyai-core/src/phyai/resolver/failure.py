"""The errors of a call that cannot be decided, with the diagnosis in their message."""

from __future__ import annotations

import attrs

from phyai.catalog import Catalog
from phyai.decision import Decision
from phyai.errors import AmbiguousKernelError, NoKernelError
from phyai.kernel import Kernel
from phyai.policy import Rule

#: Facts that every settling line would repeat, and facts that change from call to call.
_WORTH_MATCHING = ("role", "model.family", "device.arch", "quant.scheme")


def nothing_left(decision: Decision, restriction: Rule | None, catalog: Catalog) -> NoKernelError:
    """No kernel may run the call. The message lists every candidate and why; the ``decision`` has every reason."""
    absent = catalog.lacks_backends
    if absent is not None:
        return NoKernelError(f"{_call(decision)}: {absent}", attrs.evolve(decision, failure=absent))
    why = "no kernel may run this call"
    if restriction is not None and restriction.restriction is not None:
        why = f"rule {restriction.ref} ({restriction.restriction}) leaves no kernel that can run this call"
    if not decision.candidates:
        why = "no installed backend has a kernel of this op; `phyai backends` shows what is installed"
    lines = [f"{_call(decision)}: {why}", *(f"  {r.kernel}: [{r.stage.value}] {r.brief}" for r in decision.rejected)]
    lines += [f"  part {name}: {part.failure}" for name, part in decision.parts.items() if part.failure]
    return NoKernelError("\n".join(lines), attrs.evolve(decision, failure=why))


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
