"""A quantization report as a page and as a picture."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyai.errors import PhyAIError
from phyai.install import install

if TYPE_CHECKING:
    from phyai_models.quantized.report import Report

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; color: #1a1a1a }
table { border-collapse: collapse; width: 100% } th, td { padding: .25em .75em; text-align: right }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left }
tbody tr:nth-child(odd) { background: #f4f4f4 } td { font-variant-numeric: tabular-nums }
"""


def page(report: Report) -> str:
    """One self-contained page: the answers in words, and the table of layers, worst output first."""
    from phyai_models.quantized.report import COLUMNS

    def order(index: int) -> float:
        layer = report.layers[index]
        return layer.weight_sqnr if layer.output_sqnr is None else layer.output_sqnr

    rows = report.rows()
    worst_first = sorted(range(len(rows)), key=order)
    head = "".join(f"<th>{html.escape(column)}</th>" for column in COLUMNS)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in rows[i]) + "</tr>" for i in worst_first
    )
    said = "\n".join(f"<p>{html.escape(sentence)}</p>" for sentence in report.sentences())
    share = f"{report.before / 1e6:.1f} MB became {report.after / 1e6:.1f} MB."
    return (
        f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>What quantizing costs</title>"
        f"<style>{_STYLE}</style>\n<h1>What quantizing costs</h1>\n<p>{share}</p>\n{said}\n"
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>\n</html>\n"
    )


def picture(report: Report, path: Path) -> None:
    """SQNR of every layer, and the cosine of every sample, as a PNG.

    Raises:
        PhyAIError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise PhyAIError(f"a picture needs matplotlib: {install('phyai-models[demo]')}") from None
    panels = 1 if report.answers is None else 2
    figure = Figure(figsize=(7 * panels, max(3.0, 0.18 * len(report.layers) + 1.2)), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot(1, panels, 1)
    places = range(len(report.layers))
    for label, values, marker in (
        ("weight", [layer.weight_sqnr for layer in report.layers], "o"),
        ("output", [layer.output_sqnr for layer in report.layers], "x"),
    ):
        shown = [(v, i) for v, i in zip(values, places, strict=True) if v is not None and math.isfinite(v)]
        axes.plot([v for v, _ in shown], [i for _, i in shown], marker, label=label)
    axes.set_yticks(list(places), [layer.sizes.path for layer in report.layers], fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("SQNR, dB")
    axes.grid(axis="x", alpha=0.3)
    axes.legend()
    if report.answers is not None:
        axes = figure.add_subplot(1, panels, 2)
        axes.plot(range(len(report.answers.cosine)), [max(1 - c, 1e-12) for c in report.answers.cosine], "o")
        axes.axhline(1 - report.answers.cosine[report.answers.worst], color="0.7", linewidth=1)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("sample")
        axes.set_ylabel("1 − cosine of the answer with the original's")
    figure.savefig(path, dpi=110)
