"""Decisions as one self-contained HTML page: no script, no font, no image from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from phyai.decision import Accepted, Candidate, Decision
from phyai.explain.text import facts_line, passed_over

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1d2327; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; vertical-align: top; border-bottom: 1px solid #e3e6e8; }
th { color: #667; font-weight: 500; } code { font-size: .92em; } .no { color: #778; } .yes { font-weight: 600; }
summary { cursor: pointer; padding: .3rem 0; } summary .why { color: #667; } details details { margin-left: 1.5rem; }
.warning { color: #9a4a00; } .facts { color: #667; } .failed { color: #b00020; }
"""


def to_html(decisions: Mapping[str, Iterable[Decision]] | Decision, *, title: str = "PhyAI decisions") -> str:
    """A page that shows one decision, or for each named site its decisions, folded."""
    if isinstance(decisions, Decision):
        body = _decision(decisions, folded=False)
    else:
        sites = [(name, tuple(made)) for name, made in decisions.items()]
        body = "\n".join(_site(name, made) for name, made in sites) or "<p>No site has decided anything yet.</p>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def _site(name: str, decisions: tuple[Decision, ...]) -> str:
    inner = "\n".join(_decision(d, folded=True) for d in decisions) or "<p>Nothing decided yet.</p>"
    return f"<h2><code>{escape(name)}</code></h2>\n{inner}"


def _decision(decision: Decision, *, folded: bool) -> str:
    chosen = (
        f'<code class="yes">{escape(decision.kernel.id)}</code>'
        if decision.kernel is not None
        else '<span class="failed">no kernel</span>'
    )
    rows = "\n".join(_row(candidate, decision) for candidate in decision.candidates)
    notes = [
        f"Matched rules: {', '.join(map(str, decision.matched)) or 'none'}.",
        f"Decided by: {decision.decided_by}.",
    ]
    notes += [f"{name} = {value}" for name, value in decision.params.items()]
    notes += [f"Passed over: {line}." for line in passed_over(decision)]
    notes += [f"Assumed: {assumption}." for assumption in decision.assumptions]
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    listed += "".join(f'<li class="warning">{escape(warning)}</li>' for warning in decision.warnings)
    parts = "\n".join(f"<h3>Part {escape(n)}</h3>\n{_decision(d, folded=True)}" for n, d in decision.parts.items())
    return (
        f"<details{'' if folded else ' open'}><summary><code>{escape(decision.op)}</code> → {chosen} "
        f'<span class="why">{escape(decision.why())}</span></summary>\n'
        f'<p class="facts">{escape(facts_line(decision))}</p>\n'
        f"<table><thead><tr><th>#</th><th>kernel</th><th>verdict</th><th>reason</th></tr></thead>\n"
        f"<tbody>{rows}</tbody></table>\n<ul>{listed}</ul>\n{parts}</details>"
    )


def _row(candidate: Candidate, decision: Decision) -> str:
    if isinstance(candidate, Accepted):
        chosen = candidate.position == 0 and decision.kernel is not None
        cells = (str(candidate.position + 1), candidate.kernel, "chosen" if chosen else "eligible", candidate.why)
    else:
        cells = ("", candidate.kernel, f"no: {candidate.stage.value}", candidate.reason)
    kind = "yes" if isinstance(candidate, Accepted) and candidate.position == 0 else "no"
    return f'<tr class="{kind}">' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
