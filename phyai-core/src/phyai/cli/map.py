"""Draw which kernel is chosen over a grid of calls, and how far it is ahead of the second best.

From the timings of a store (--measured), or from declarations alone, also for a GPU that is not here.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from phyai.cli.command import Context, Exit
from phyai.errors import PhyAIError
from phyai.install import install

if TYPE_CHECKING:
    from phyai.policy import Policy
    from phyai.tune import TuningLayer

EXAMPLES = """
  phyai map --op gemm --grid M=1..4096,layer --device sm90
  phyai map --op gemm --grid M=1..4096,layer --measured --png gemm.png --html gemm.html
  phyai map --op rms_norm --grid "M=1..4096,D=1024|2048" --device h200 --policy policy.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--op", required=True, help="the op (or alias)")
    parser.add_argument(
        "--grid", default="M=1..4096,layer", metavar="X,Y",
        help="columns and rows: NAME=LO..HI (with the powers of two between), NAME=1|50|968, or layer",
    )  # fmt: skip
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="auto, cpu, cuda:1, or a GPU by name (h200, sm90)"
    )
    parser.add_argument("--policy", metavar="FILE", help="policy file; without one, PHYAI_KERNEL_CONFIG")
    parser.add_argument("--graph", action="store_true", help="the calls run inside a CUDA graph")
    parser.add_argument("--measured", action="store_true", help="the calls that were tuned, with their timings")
    parser.add_argument("--store", metavar="FILE", help="with --measured: this store instead of the device's own")
    parser.add_argument("--png", metavar="FILE", help="write a picture (with the extra phyai-core[plots])")
    parser.add_argument("--html", metavar="FILE", help="write a page")


def main(args: argparse.Namespace, context: Context) -> int:
    from phyai.tune.decision_map import decision_map, parse_grid
    from phyai.tune.map_pages import to_html, to_png

    if context.catalog.lacks_backends is not None:
        raise PhyAIError(context.catalog.lacks_backends)
    environment = context.environment(args.device)
    policy = context.policy(args.policy)
    drawn = decision_map(
        args.op,
        parse_grid(args.grid),
        context.catalog,
        policy,
        environment,
        layer=_layer(args, context, policy) if args.measured else None,
        capture=args.graph,
    )
    if args.html:
        Path(args.html).write_text(to_html(drawn), encoding="utf-8")
    if args.png:
        try:
            to_png(drawn, args.png)
        except ModuleNotFoundError as error:
            raise PhyAIError(f"--png needs {error.name}: {install('phyai-core[plots]')}") from None
    if context.json:
        context.emit(drawn.to_json())
        return Exit.OK
    letters = {id: f"{i + 1}" for i, id in enumerate(drawn.kernels)}
    rows = []
    for name, row in zip(drawn.rows, drawn.cells, strict=True):
        shown = [letters[c.kernel] + ("" if c.ahead is None else f" {c.ahead:.2f}x") if c.kernel else "–" for c in row]
        rows.append((name, *shown))
    title = f"{drawn.title}: columns are {drawn.columns.name}"
    context.table((drawn.row_name, *map(str, drawn.columns.sizes)), rows, title=title)
    for id, letter in letters.items():
        context.say(f"{letter:>3}  {id}")
    for environment_says in environment.assumptions:
        context.say(f"assumed: {environment_says}")
    return Exit.OK


def _layer(args: argparse.Namespace, context: Context, policy: Policy) -> TuningLayer:
    from phyai.tune import Store, tuning_layer

    environment = context.environment(args.device)
    store = Store(Path(args.store)) if args.store else Store.of(environment.device, context.env)
    contents = store.read()
    if contents.problem:
        context.note(f"phyai: warning: {contents.problem}")
    return tuning_layer(contents.measurements, context.catalog, policy, environment)
