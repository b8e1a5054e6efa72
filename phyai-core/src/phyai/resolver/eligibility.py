"""Which kernels may run a call: the checks that no rule can lift, each with its reason in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from phyai.composite import is_decomposition
from phyai.decision import Rejected, RuleRef, Stage
from phyai.facts import FactValue
from phyai.kernel import Capture, Kernel
from phyai.policy import NumericsDemand

PLAIN = "plain"


def refusal(
    kernel: Kernel, facts: Mapping[str, FactValue], demand: NumericsDemand | None, asked_by: RuleRef | None
) -> Rejected | None:
    """Why ``kernel`` may not run the call, or None: capability, then layout, capture, numerics."""
    reason = kernel.when.why_not(facts)
    if reason is not None:
        return Rejected(kernel.id, Stage.CAPABILITY, reason)
    for what, layout in () if is_decomposition(kernel) else _layouts(facts):
        if layout not in kernel.layouts:
            reads = ", ".join(kernel.layouts) or "none"
            return Rejected(kernel.id, Stage.LAYOUT, f"{what} lies as {layout}, this kernel reads {reads}")
    if kernel.capture is Capture.NEVER and facts.get("mode.capture") is True:
        return Rejected(kernel.id, Stage.CAPTURE, "cannot be captured into a CUDA graph, and the site will be")
    reason = demand.why_not(kernel.numerics) if demand is not None else None
    if reason is not None:
        return Rejected(kernel.id, Stage.NUMERICS, f"{reason}, which {_asker(asked_by)} asks for", asked_by)
    return None


def _layouts(facts: Mapping[str, FactValue]) -> Iterator[tuple[str, FactValue]]:
    """The layouts of the weights: the call's own, and those of a composite's parts."""
    yield "the weight", facts.get("quant.layout", PLAIN)
    for name, value in facts.items():
        if name.startswith("parts.") and name.endswith(".quant.layout"):
            yield f"the weight of part {name.split('.')[1]}", value


def _asker(rule: RuleRef | None) -> str:
    return "defaults.numerics" if rule is None else f"rule {rule}"
