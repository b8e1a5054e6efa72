"""What was decided at every site, and which rules never mattered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from phyai.decision import Decision, RuleRef
from phyai.policy import Layer, Policy
from phyai.quant.lowering import LayoutChoice

if TYPE_CHECKING:
    from phyai.dispatch.site import Site


@attrs.frozen
class SiteReport:
    """One site: ``decisions`` is empty while no call was decided. ``layouts`` says how its quantized weights lie."""

    name: str
    op: str
    dynamic: bool
    frozen: bool
    decisions: tuple[Decision, ...]
    layouts: Mapping[str, LayoutChoice] = attrs.field(factory=dict)


@attrs.frozen
class Report:
    """Every site of a dispatcher, and the rules of the policy that no decision matched."""

    sites: tuple[SiteReport, ...]
    unmatched: tuple[RuleRef, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "sites": [
                {
                    "name": site.name,
                    "op": site.op,
                    "dynamic": site.dynamic,
                    "frozen": site.frozen,
                    "layouts": {name: choice.to_json() for name, choice in site.layouts.items()},
                    "decisions": [decision.to_json() for decision in site.decisions],
                }
                for site in self.sites
            ],
            "unmatched_rules": [attrs.asdict(rule) for rule in self.unmatched],
        }


def report_of(sites: Iterable[Site], policy: Policy) -> Report:
    """Every site with its decisions, and the user's rules in ``policy`` that none of them matched."""
    found = tuple(SiteReport(s.name, s.op.name, s.dynamic, s.frozen, s.decisions, s.lowering.choices) for s in sites)
    matched = {ref for site in found for decision in site.decisions for ref in _matched(decision)}
    rules = (rule.ref for rule in policy.rules if rule.layer >= Layer.USER)
    return Report(found, tuple(ref for ref in rules if ref not in matched))


def _matched(decision: Decision) -> set[RuleRef]:
    return {*decision.matched, *(ref for part in decision.parts.values() for ref in _matched(part))}
