"""Which kernels may run a call: the checks that no rule can lift, each with its reason in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from phyai.composite import is_decomposition
from phyai.decision import Rejected, RuleRef, Stage
from phyai.facts import FactValue
from phyai.kernel import Capture, Kernel
from phyai.policy import NumericsDemand

PLAIN = "plain"


def examiner(
    facts: Mapping[str, FactValue], demand: NumericsDemand | None, asked_by: RuleRef | None
) -> Callable[[Kernel], Rejected | None]:
    """A function that says why a kernel may not run a call, or None: capability, then layout, capture, numerics."""
    known = dict(facts)  # a plain dict is the quickest to ask
    layouts = _layouts(known)
    captured = known.get("mode.capture") is True
    asker = "defaults.numerics" if asked_by is None else f"rule {asked_by}"

    def refusal(kernel: Kernel) -> Rejected | None:
        if not kernel.when.holds(known):
            return Rejected(kernel.id, Stage.CAPABILITY, str(kernel.when.why_not(known)))
        for what, layout in layouts:
            if layout not in kernel.layouts and not is_decomposition(kernel):
                reads = ", ".join(kernel.layouts) or "none"
                return Rejected(kernel.id, Stage.LAYOUT, f"{what} lies as {layout}, this kernel reads {reads}")
        if captured and kernel.capture is Capture.NEVER:
            return Rejected(kernel.id, Stage.CAPTURE, "cannot be captured into a CUDA graph, and the site will be")
        reason = demand.why_not(kernel.numerics) if demand is not None else None
        if reason is not None:
            return Rejected(kernel.id, Stage.NUMERICS, f"{reason}, which {asker} asks for", asked_by)
        return None

    return refusal


def _layouts(facts: Mapping[str, FactValue]) -> list[tuple[str, FactValue]]:
    """The layouts of the weights: the call's own, and those of a composite's parts."""
    parts = [
        (f"the weight of part {name.split('.')[1]}", value)
        for name, value in facts.items()
        if name.startswith("parts.") and name.endswith(".quant.layout")
    ]
    return [("the weight", facts.get("quant.layout", PLAIN)), *parts]
