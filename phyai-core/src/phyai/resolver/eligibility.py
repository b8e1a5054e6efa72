"""Which kernels may run a call: the checks that no rule can lift, each with its reason in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from phyai.composite import is_decomposition, part_name
from phyai.decision import Rejected, RuleRef, Stage
from phyai.facts import FactValue
from phyai.kernel import Capture, Kernel
from phyai.policy import NumericsDemand

PLAIN = "plain"


#: Says in words why a kernel may not run a call. Most are never asked.
Verdict: TypeAlias = Callable[[], Rejected]


def examiner(
    facts: Mapping[str, FactValue], demand: NumericsDemand | None, asked_by: RuleRef | None
) -> Callable[[Kernel], Verdict | None]:
    """A function that judges kernels for one call: capability, then layout, capture, numerics; None is no objection."""
    known = dict(facts)  # a plain dict is the quickest to ask
    layouts = _layouts(known)
    captured = known.get("mode.capture") is True

    def objection(kernel: Kernel) -> Verdict | None:
        if not kernel.when.holds(known):
            return lambda: Rejected(kernel.id, Stage.CAPABILITY, str(kernel.when.why_not(known)))
        for what, layout in layouts:
            if layout not in kernel.layouts and not is_decomposition(kernel):
                why = f"{what} lies as {layout}, this kernel reads {', '.join(kernel.layouts) or 'none'}"
                return partial(Rejected, kernel.id, Stage.LAYOUT, why)
        if captured and kernel.capture is Capture.NEVER:
            why = "cannot be captured into a CUDA graph, and the site will be"
            return partial(Rejected, kernel.id, Stage.CAPTURE, why)
        missing = demand.why_not(kernel.numerics) if demand is not None else None
        if missing is not None:
            why = f"{missing}, which {'defaults.numerics' if asked_by is None else f'rule {asked_by}'} asks for"
            return partial(Rejected, kernel.id, Stage.NUMERICS, why, asked_by)
        return None

    return objection


def _layouts(facts: Mapping[str, FactValue]) -> list[tuple[str, FactValue]]:
    """The layouts of the weights: the call's own, and those of a composite's parts."""
    parts = [
        (f"the weight of part {part_name(name)}", value)
        for name, value in facts.items()
        if name.startswith("parts.") and name.endswith(".quant.layout")
    ]
    return [("the weight", facts.get("quant.layout", PLAIN)), *parts]
