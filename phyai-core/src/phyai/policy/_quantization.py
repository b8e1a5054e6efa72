"""The ``quantization`` section of a policy file: what is wrong with it, where it was written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.catalog import Catalog
from phyai.policy._model import Location
from phyai.policy._node import Node
from phyai.policy._problems import Report
from phyai.spelling import did_you_mean


def read_quantization(node: Node, catalog: Catalog, report: Report, file: str) -> Mapping[str, Any] | None:
    """The section as plain data; None where it is refused. ``phyai.quant`` reads it, this places its problems."""
    from phyai.quant import QuantPolicyError, QuantProblem, plan_from_policy
    from phyai.quant.formats import PLAIN

    section = node.plain()
    try:
        plan = plan_from_policy(section)
    except QuantPolicyError as error:
        for problem in error.problems:
            assert isinstance(problem, QuantProblem)
            found = node.find(problem.path)
            place, got = (found.line, found.column), found.shown()
            if problem.message == "unknown key":
                got = str(problem.path[-1])
                place = node.find(problem.path[:-1]).keys[got]
            report.error(Location(file, *place), problem.message, got, problem.suggestion)
        return None
    layouts = (PLAIN, *(str(getattr(known, "layout", known.name)) for known in catalog.quant_formats))
    for i, rule in enumerate(plan.rules):
        if rule.layout is not None and rule.layout not in layouts:
            found = node.find(("rules", i, "layout"))
            at = Location(file, found.line, found.column)
            report.warn(at, "no installed backend has this layout", rule.layout, did_you_mean(rule.layout, layouts))
    return section if isinstance(section, dict) else None
