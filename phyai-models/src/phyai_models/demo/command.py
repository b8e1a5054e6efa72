"""Run a small π0.5 on photographs under two policies: which kernel ran each part, how far the two answers differ,
and a picture of the chunk.

The photographs come with scikit-image, the checkpoint with the repository (examples/pi05-tiny; it is not trained).
"""

from __future__ import annotations

import argparse
import importlib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyai.cli.command import Context, Exit
from phyai.errors import CheckpointError, PhyAIError
from phyai.install import install

if TYPE_CHECKING:
    import torch
    from phyai.engine.decisions import DecisionRow
    from phyai.policy import Policy

EXAMPLES = """
  phyai demo
  phyai demo --policy my-policy.yaml --instruction "wave to the astronaut"
"""

CHECKPOINT = Path("examples/pi05-tiny")
INSTRUCTION = "pick up the coffee cup and put it on the saucer"
STATE = (0.1, -0.4, 0.7, 0.0, 0.3, -0.2, 0.0, 1.0)
SEED = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", default=str(CHECKPOINT), metavar="DIR", help=f"default: {CHECKPOINT}")
    parser.add_argument(
        "--policy", metavar="FILE", help="the second policy (default: int8 weights, vision by the reference)"
    )
    parser.add_argument("--instruction", default=INSTRUCTION, metavar="TEXT", help=f"default: {INSTRUCTION}")
    parser.add_argument(
        "--out", default="demo-output", metavar="DIR", help="where chunk.png goes (default: demo-output)"
    )


def main(args: argparse.Namespace, context: Context) -> int:
    if not Path(args.checkpoint, "config.json").is_file():
        raise CheckpointError(
            f"there is no checkpoint in {args.checkpoint}: run this in the repository, or make one with "
            "python -m phyai_models.demo.make_checkpoint DIR, and give --checkpoint DIR"
        )
    photographs = _photographs()
    from phyai.policy import default_policy, parse_policy

    shipped = resources.files("phyai_models.demo").joinpath("policies/second.yaml").read_bytes()
    second = (
        context.policy(args.policy)
        if args.policy
        else parse_policy(shipped, file="second.yaml", catalog=context.catalog).policy
    )
    policies = {"the shipped default policy": default_policy(), args.policy or "second.yaml": second}
    chunks: dict[str, torch.Tensor] = {}
    tables: dict[str, list[DecisionRow]] = {}
    for name, policy in policies.items():
        chunks[name], tables[name] = _run(args, context, policy, photographs)
    chunk, other = chunks.values()
    difference = float((chunk - other).abs().max())
    spread = float(chunk.abs().max())
    picture = _draw(Path(args.out), chunks, photographs, args.instruction)
    if context.json:
        context.emit(
            {
                "chunks": {name: chunk.tolist() for name, chunk in chunks.items()},
                "decisions": {name: [row.to_json() for row in rows] for name, rows in tables.items()},
                "largest_difference": difference,
                "picture": str(picture),
            }
        )
        return Exit.OK
    _show(context, tables)
    context.say(
        f'"{args.instruction}", {len(photographs)} photographs, a chunk of {len(chunk)} actions of {chunk.shape[1]}:'
    )
    context.say(f"the two chunks differ by at most {difference:.2e}, where the largest action is {spread:.3f}")
    context.say(f"the chunk is drawn in {picture}")
    return Exit.OK


def _photographs() -> dict[str, Any]:
    try:
        data: Any = importlib.import_module("skimage.data")
    except ImportError as error:
        raise PhyAIError(
            f"the demonstration needs scikit-image and matplotlib: {install('phyai-models[demo]')}"
        ) from error
    return {"base": data.astronaut(), "wrist": data.coffee()}


def _run(
    args: argparse.Namespace, context: Context, policy: Policy, photographs: dict[str, Any]
) -> tuple[torch.Tensor, list[DecisionRow]]:
    from phyai.engine import Engine, EngineArgs
    from phyai.engine.decisions import decision_rows

    from phyai_models.pi05 import Observation, PI05Args

    plugin_args = PI05Args(args.checkpoint, seed=SEED)
    with Engine(EngineArgs("pi05", plugin_args), policy=policy, catalog=context.catalog) as engine:
        chunk = engine.step(Observation(photographs, args.instruction, STATE))
        return chunk.actions, decision_rows(engine.dispatcher.report())


def _show(context: Context, tables: dict[str, list[DecisionRow]]) -> None:
    from phyai.engine.decisions import COLUMNS, cells

    for name, rows in tables.items():
        context.table(COLUMNS, [cells(row) for row in rows], title=f"under {name}")
        context.say()


def _draw(directory: Path, chunks: dict[str, torch.Tensor], photographs: dict[str, Any], instruction: str) -> Path:
    """The chunk under both policies, beside what the model saw."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(photographs), 2, width_ratios=(1, 3))
    for row, (camera, photograph) in enumerate(photographs.items()):
        axes = figure.add_subplot(grid[row, 0])
        axes.imshow(photograph)
        axes.set_title(camera)
        axes.axis("off")
    axes = figure.add_subplot(grid[:, 1])
    for (name, chunk), style in zip(chunks.items(), ("-", "k:"), strict=True):
        for dimension in range(chunk.shape[1]):
            label = f"action {dimension}" if style == "-" else (name if dimension == 0 else None)
            axes.plot(chunk[:, dimension].numpy(), style, label=label, linewidth=1.5 if style == "-" else 1.0)
    axes.set_xlabel("step of the chunk")
    axes.set_ylabel("action, in the robot's units")
    axes.set_title(f"π0.5 (not trained): {instruction}")
    axes.legend(fontsize="small", ncols=2)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "chunk.png"
    figure.savefig(path, dpi=110)
    return path
