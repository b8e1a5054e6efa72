"""What was decided at every site, and which rules never mattered."""

from __future__ import annotations

from typing import Any

import attrs

from phyai.decision import Decision, RuleRef


@attrs.frozen
class SiteReport:
    """One site: ``decisions`` is empty while no call was decided."""

    name: str
    op: str
    dynamic: bool
    frozen: bool
    decisions: tuple[Decision, ...]


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
                    "decisions": [decision.to_json() for decision in site.decisions],
                }
                for site in self.sites
            ],
            "unmatched_rules": [attrs.asdict(rule) for rule in self.unmatched],
        }
