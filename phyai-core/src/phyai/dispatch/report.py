"""What was decided at every site, and which rules never mattered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from phyai.decision import Decision, RuleRef
from phyai.quant.lowering import LayoutChoice


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
