"""The decisions of an engine as a table: which kernel runs each kind of call, and why."""

from __future__ import annotations

from typing import Any

import attrs

from phyai.dispatch import Report


@attrs.frozen
class DecisionRow:
    """Calls that were decided alike: ``calls`` is how many call sites they are, ``layer`` one of them as an example.

    ``layout`` says how the quantized weights of these sites lie; None where they have none.
    """

    role: str
    op: str
    kernel: str
    calls: int
    why: str
    layer: str
    layout: str | None = None

    def to_json(self) -> dict[str, Any]:
        return attrs.asdict(self)


COLUMNS = ("role", "op", "kernel", "sites", "why")


def decision_rows(report: Report) -> list[DecisionRow]:
    """One row for every role, op, kernel and reason, in the order in which the model calls them.

    Sites that were never called have no row; a site that decided differently for different calls counts in
    each of its rows.
    """
    grouped: dict[tuple[str, str, str, str, str | None], list[str]] = {}
    for site in report.sites:
        for decision in site.decisions:
            if decision.kernel is not None:
                layout = decision.facts.get("quant.layout")
                key = (
                    str(decision.facts.get("role", "")), site.op, decision.kernel.id, decision.why(),
                    None if layout is None else str(layout),
                )  # fmt: skip
                grouped.setdefault(key, []).append(str(decision.facts.get("layer", site.name)))
    roles = list(dict.fromkeys(role for role, *_ in grouped))
    rows = [
        DecisionRow(role, op, kernel, len(set(layers)), why, layers[0], layout)
        for (role, op, kernel, why, layout), layers in grouped.items()
    ]
    return sorted(rows, key=lambda row: roles.index(row.role))


def cells(row: DecisionRow) -> tuple[str, ...]:
    """A row as text, in the order of :data:`COLUMNS`."""
    lies = "" if row.layout is None else f"; weight lies as {row.layout}"
    return row.role, row.op, row.kernel, str(row.calls), row.why + lies
