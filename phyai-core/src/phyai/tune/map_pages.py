"""A decision map as a page that needs nothing else, and as a picture."""

from __future__ import annotations

import os
from html import escape

from phyai.tune.decision_map import Cell, DecisionMap

#: Colours that colour-blind people tell apart (Okabe and Ito), then lighter ones.
COLOURS = (
    "#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#0072b2", "#999999",
    "#a6dcef", "#f5cf80", "#8fd6bf", "#e8bcd3", "#f0a878", "#88b8d8", "#cccccc", "#c0b060",
)  # fmt: skip
NOTHING = "#ffffff"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #1d2327; }
table { border-collapse: collapse; } th { font-weight: 500; color: #556; padding: .2rem .5rem; text-align: right; }
td { border: 1px solid #fff; min-width: 3.2rem; height: 1.7rem; text-align: center; font-size: .85em; color: #111; }
.none { border: 1px solid #dde; } ul { list-style: none; padding: 0; } li span { display: inline-block; width: 1rem;
height: 1rem; margin-right: .5rem; vertical-align: -.15rem; border: 1px solid #aab; } .note { color: #667; }
"""


def colours(decision_map: DecisionMap) -> dict[str, str]:
    """A colour for each kernel."""
    return {id: COLOURS[i % len(COLOURS)] for i, id in enumerate(decision_map.kernels)}


def to_html(decision_map: DecisionMap) -> str:
    """A self-contained page: a coloured table, with the reason of each cell where the pointer rests."""
    colour = colours(decision_map)
    head = "".join(f"<th>{size}</th>" for size in decision_map.columns.sizes)
    body = "\n".join(
        f"<tr><th>{escape(name)}</th>{''.join(_cell(cell, colour) for cell in row)}</tr>"
        for name, row in zip(decision_map.rows, decision_map.cells, strict=True)
    )
    legend = "".join(
        f'<li><span style="background:{c}"></span><code>{escape(id)}</code></li>' for id, c in colour.items()
    )
    title = escape(decision_map.title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"</head>\n<body><h1>{title}</h1>\n<ul>{legend}</ul>\n"
        f"<table><thead><tr><th>{escape(decision_map.row_name)} \\ {escape(decision_map.columns.name)}</th>{head}</tr>"
        f"</thead>\n<tbody>{body}</tbody></table>\n"
        '<p class="note">A number says how many times faster the chosen kernel is than the second best; '
        "where there is none, it was not measured.</p></body></html>\n"
    )


def _cell(cell: Cell, colour: dict[str, str]) -> str:
    if cell.kernel is None:
        return f'<td class="none" title="{escape(cell.why)}"></td>'
    shown = "" if cell.ahead is None else f"{cell.ahead:.2f}"
    return f'<td style="background:{colour[cell.kernel]}" title="{escape(f"{cell.kernel}: {cell.why}")}">{shown}</td>'


def to_png(decision_map: DecisionMap, path: str | os.PathLike[str]) -> None:
    """Draw the map with matplotlib.

    Raises:
        ModuleNotFoundError: matplotlib is not installed (the extra ``plots``).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    colour = colours(decision_map)
    wide, tall = len(decision_map.columns.sizes), len(decision_map.rows)
    figure = Figure(figsize=(3.5 + 0.55 * wide, 1.6 + 0.34 * (tall + len(colour))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.imshow(
        [[to_rgb(colour[c.kernel] if c.kernel else NOTHING) for c in row] for row in decision_map.cells], aspect="auto"
    )
    for y, row in enumerate(decision_map.cells):
        for x, cell in enumerate(row):
            if cell.ahead is not None:
                axes.text(x, y, f"{cell.ahead:.2f}", ha="center", va="center", fontsize=7)
    axes.set_xticks(range(wide), [str(size) for size in decision_map.columns.sizes], rotation=45, fontsize=8)
    axes.set_yticks(range(tall), decision_map.rows, fontsize=8)
    axes.set_xticks([x - 0.5 for x in range(1, wide)], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, tall)], minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel(decision_map.columns.name)
    axes.set_ylabel(decision_map.row_name)
    axes.set_title(decision_map.title, fontsize=10)
    handles = [Patch(facecolor=c, label=id) for id, c in colour.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(path, dpi=140)
