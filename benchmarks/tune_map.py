"""What tuning measured, beside what the static order chooses: a figure and a table, from a tuning store. Needs no GPU.

    python benchmarks/tune_map.py benchmarks/results/tune_pi05.store.json --device h200 \\
        --png benchmarks/results/tune_pi05.png --json benchmarks/results/tune_pi05.map.json [--policy FILE]

For every kind of call in the store: the kernel that the policy chooses for it on that device (without a policy file,
the default order), the fastest one that was measured, and the ratio of their times. Choices count as they are made now:
a store that was measured before kernels changed shows what the new order would have done. A choice is within the margin
where it is at most 2 % slower than the best (0.2 % of timings of whole steps) and what their noise leaves open. The
best is the fastest of those whose numbers are as good, as in tuning. It ends with status 1 where a choice is not.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
from phyai.catalog import Catalog
from phyai.environment import Environment
from phyai.plugins import discover
from phyai.policy import Policy, default_policy, load_policy
from phyai.tune import Measurement, Store, TuneError
from phyai.tune.choose import LIVE_MARGIN, promises, untuned
from phyai.tune.key import CallKey
from phyai.tune.layer import facts_of, rule_id
from phyai.tune.record import seconds
from phyai.tune.stats import MARGIN, beats

#: Times the fastest one's, above which all cells look alike.
SLOWEST = 2.0


@attrs.frozen
class Row:
    """One kind of call. ``us`` are medians per call, or per step of the model where ``method`` is ``live``."""

    call: str
    key: str
    op: str
    method: str
    static: str
    fastest: str
    us: dict[str, float]
    #: The fastest one whose numbers are as good as the static choice's.
    best: str
    within: bool
    problems: dict[str, str]

    @property
    def ratio(self) -> float | None:
        """The static choice's time over the fastest one's; None where it was not measured."""
        return self.us[self.static] / self.us[self.fastest] if self.static in self.us else None

    @property
    def slower(self) -> float:
        """The static choice's time over the best one's."""
        return self.us[self.static] / self.us[self.best] if self.static in self.us else math.inf

    def to_json(self) -> dict[str, object]:
        ratio = None if self.ratio is None else round(self.ratio, 4)
        us = {id: float(f"{time:.5g}") for id, time in self.us.items()}
        return {**attrs.asdict(self), "us": us, "ratio": ratio}


def rows(
    measurements: Iterable[Measurement], catalog: Catalog, policy: Policy, environment: Environment, family: str
) -> tuple[Row, ...]:
    """A row for the newest measurement of each kind of call and method, by op, as calls of a model of ``family``."""
    newest = {(m.key, m.method): m for m in sorted(measurements, key=Measurement.order)}
    known = (m for m in newest.values() if m.op in catalog.aliases and m.usable())
    found = [_row(m, catalog, policy, environment, family) for m in known]
    return tuple(sorted(found, key=lambda row: (row.op, row.call, row.method)))


def _row(m: Measurement, catalog: Catalog, policy: Policy, environment: Environment, family: str) -> Row:
    facts = facts_of(m, catalog.op(m.op), environment).replace({"model.family": family})
    candidates = untuned(facts, catalog, policy, environment)
    static = candidates.ids[0] if candidates.ids else m.incumbent
    timed = m.usable()
    fastest = min(timed, key=lambda id: timed[id].median)
    margin = LIVE_MARGIN if m.method == "live" else MARGIN
    chosen = timed.get(static)
    numerics = {kernel.id: kernel.numerics for kernel in candidates.kernels}
    as_good = [id for id in timed if id in numerics and promises(numerics[id], numerics[candidates.ids[0]])]
    best = min(as_good or timed, key=lambda id: timed[id].median)
    return Row(
        call=rule_id(CallKey(m.op, m.facts, m.bucket)),
        key=m.key,
        op=m.op,
        method=m.method,
        static=static,
        fastest=fastest,
        us={id: 1e6 * result.median for id, result in sorted(timed.items(), key=lambda item: item[1].median)},
        best=best,
        within=chosen is not None and not beats(timed[best].samples, chosen.samples, margin=margin),
        problems={id: result.problem for id, result in m.results.items() if result.problem is not None},
    )


def table(found: Sequence[Row]) -> str:
    """The rows as text."""
    lines = []
    for row in found:
        ratio = "not measured" if row.ratio is None else f"{row.ratio:.3f}x"
        verdict = "ok  " if row.within else "SLOW"
        numbers = "" if row.fastest == row.best else ", of another class of numerics"
        other = "" if row.static == row.fastest else f"; fastest {row.fastest}{numbers}"
        time = seconds(row.us[row.fastest] / 1e6)
        lines.append(f"{verdict} {ratio:>12}  {row.call} ({row.method}): {row.static}; {time}{other}")
    return "\n".join(lines)


def draw(found: Sequence[Row], path: Path, title: str) -> None:
    """A panel for each op: a row for each kind of call, a column for each kernel, in a cell its time and how many times
    the fastest one's it is. A frame marks the static choice: black, or red where it is not within the margin."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    ops = list(dict.fromkeys(row.op for row in found))
    panels = [[row for row in found if row.op == op] for op in ops]
    columns = [list(dict.fromkeys(id for row in panel for id in (row.static, *row.us))) for panel in panels]
    heights = [0.75 + 0.4 * len(panel) for panel in panels]
    figure = Figure(figsize=(5 + 1.25 * max(map(len, columns)), 0.4 + sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, op, panel, ids in zip(grid[:, 0], ops, panels, columns, strict=True):
        ratios = [[row.us[id] / row.us[row.fastest] if id in row.us else float("nan") for id in ids] for row in panel]
        axes.imshow(ratios, cmap="RdYlGn_r", vmin=1.0, vmax=SLOWEST, aspect="auto", alpha=0.6)
        for y, row in enumerate(panel):
            for x, id in enumerate(ids):
                if id in row.us:
                    text = f"{seconds(row.us[id] / 1e6)}\n{ratios[y][x]:.2f}×"
                    axes.text(x, y, text, ha="center", va="center", fontsize=6)
            colour = "black" if row.within else "red"
            axes.add_patch(Rectangle((ids.index(row.static) - 0.48, y - 0.46), 0.96, 0.92, fill=False, ec=colour, lw=2))
        axes.set_xticks(range(len(ids)), [id.replace(f".{op}", "") for id in ids], fontsize=7)
        axes.set_yticks(range(len(panel)), [_label(row) for row in panel], fontsize=7)
        axes.set_title(op, fontsize=9, loc="left")
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=140)


def _label(row: Row) -> str:
    name = "/".join(row.call.split("/")[1:-1])
    return f"{name} (live: whole steps)" if row.method == "live" else name


def check(found: Sequence[Row]) -> dict[str, bool]:
    """By key: whether the static choice is within the margin of the fastest, however it was timed."""
    holds: dict[str, bool] = {}
    for row in found:
        holds[row.key] = holds.get(row.key, True) and row.within
    return holds


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--device", default="h200", help="the device that was measured, as `phyai map` takes it")
    parser.add_argument("--policy", help="a policy file; without one, the default order")
    parser.add_argument("--family", default="pi05", help="the model's family, which rules of a policy may ask for")
    parser.add_argument("--png", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    contents = Store(args.store).read()
    if contents.problem or not contents.measurements:
        raise TuneError(contents.problem or f"{args.store} holds no measurement")
    catalog = discover()
    libraries = {
        n.removeprefix("lib."): v for m in contents.measurements for n, v in m.stamp.items() if n[:4] == "lib."
    }
    environment = Environment.simulated(args.device, libraries=libraries)
    policy = load_policy(args.policy, catalog=catalog).policy if args.policy else default_policy()
    found = rows(contents.measurements, catalog, policy, environment, args.family)
    print(table(found))
    if args.json is not None:
        args.json.write_text(json.dumps([row.to_json() for row in found], indent=1) + "\n")
    if args.png is not None:
        draw(
            found, args.png, f"{args.store.name} on {environment.device}: {args.policy or 'the default order'}, framed"
        )
    return 0 if all(check(found).values()) else 1


if __name__ == "__main__":
    sys.exit(main())
