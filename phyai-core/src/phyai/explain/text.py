"""A decision as text: what was chosen and why, every candidate with its verdict, the rules that matched."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from phyai.composite import is_decomposition, part_name
from phyai.decision import Accepted, Candidate, Decision
from phyai.policy import Layer

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Facts that the header shows; the others are in the JSON.
_HEADER = ("role", "layer", "model.family", "device.name", "device.arch", "device.type", "quant.scheme", "quant.layout")


def render(decision: Decision) -> RenderableType:
    """The decision as something that a rich console prints."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    chosen = decision.kernel.id if decision.kernel is not None else "no kernel"
    head = Text.assemble((decision.op, "bold"), " → ", (chosen, "bold green" if decision.kernel else "bold red"))
    head.append(
        f"   ({decision.why()}; decided by {decision.decided_by})" if decision.kernel else f"   ({decision.why()})"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("#", "kernel", "verdict", "reason"):
        table.add_column(column, overflow="fold", no_wrap=column != "reason")
    for candidate in decision.candidates:
        table.add_row(*_row(candidate, decision), style=None if isinstance(candidate, Accepted) else "dim")
    lines = [Text(f"  {line}") for line in _notes(decision)]
    for fact, choice in decision.layouts.items():
        whose = f"part {part_name(fact)}: " if decision.parts else ""
        first, *others = choice.to_text().splitlines()
        lines += [Text(f"  {line}") for line in (whose + first, *others)]
    blocks: list[RenderableType] = [
        head,
        Text(f"  {facts_line(decision)}", style="dim"),
        Padding(table, (0, 0, 0, 2)),
        *lines,
    ]
    for name, part in decision.parts.items():
        blocks.append(Padding(Group(Text(f"part {name}:", style="italic"), render(part)), (0, 0, 0, 4)))
    return Group(*blocks)


def to_text(decision: Decision, *, width: int = 160) -> str:
    """The same without colours, for files and messages."""
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, highlight=False).print(render(decision))
    return stream.getvalue()


def facts_line(decision: Decision) -> str:
    """The facts that identify a call, in one line."""
    shown = [n for n in decision.facts if n.startswith(("shape.", "dtype.", "attrs."))]
    shown += [n for n in _HEADER if n in decision.facts]
    return "  ".join(f"{name}={decision.facts[name]}" for name in shown)


def _row(candidate: Candidate, decision: Decision) -> tuple[str, str, str, str]:
    from rich.markup import escape

    if isinstance(candidate, Accepted):
        verdict = "chosen" if candidate.position == 0 and decision.kernel is not None else "eligible"
        return str(candidate.position + 1), escape(candidate.kernel), verdict, escape(candidate.why)
    return "", escape(candidate.kernel), f"no: {candidate.stage.value}", escape(candidate.brief)


def passed_over(decision: Decision) -> list[str]:
    """What rules prefer for the parts of a call that a kernel computes as a whole: preferences do not rule that out."""
    if decision.kernel is None or is_decomposition(decision.kernel):
        return []
    advice = f"to have it run, prefer decomposed.{decision.op}, or restrict the part with restrict_to"
    return [f"part {name}: {one.kernel} is {one.why}; {advice}" for name, one in _preferred(decision.parts)]


def _preferred(parts: Mapping[str, Decision]) -> Iterator[tuple[str, Accepted]]:
    """The kernels of parts, and of the parts of chains among them, that the user's rules put first."""
    for name, part in parts.items():
        if part.kernel is not None and part.decided_by == str(Layer.USER) and part.accepted[0].rule is not None:
            yield name, part.accepted[0]
        if part.kernel is not None and is_decomposition(part.kernel):
            yield from ((f"{name}.{inner}", one) for inner, one in _preferred(part.parts))


def _notes(decision: Decision) -> list[str]:
    notes = [f"matched: {', '.join(map(str, decision.matched))}"] if decision.matched else ["matched: no rule"]
    if decision.params:
        notes.append("params: " + ", ".join(f"{name}={value}" for name, value in decision.params.items()))
    notes += [f"passed over: {line}" for line in passed_over(decision)]
    notes += [f"assumed: {assumption}" for assumption in decision.assumptions]
    notes += [f"warning: {warning}" for warning in decision.warnings]
    return notes
