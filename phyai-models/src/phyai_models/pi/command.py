"""``phyai run pi05`` and ``phyai run pi0``: a batch from a file, or images, an instruction and a state."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyai.cli.command import Context, Exit, UsageError
from phyai.errors import CheckpointError, InputError
from phyai.files.replacing import replacing

from phyai_models.pi.options import steps

if TYPE_CHECKING:
    import torch
    from phyai.engine import Engine

EXAMPLES = """
  phyai run {family} --checkpoint DIR --inputs inputs.safetensors --out out.safetensors --trace
  phyai run {family} --checkpoint DIR --image base=front.png --image wrist=wrist.png \\
      --instruction "pick up the cup" --state 0.1,0.2,0,0,0,0,0,1 --policy policy.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="directory with config.json and the weights")
    batch = parser.add_argument_group("a batch in lerobot's names")
    batch.add_argument(
        "--inputs", metavar="FILE",
        help="safetensors file with images in [0, 1], normalized state, token ids and mask, and optionally noise",
    )  # fmt: skip
    batch.add_argument("--trace", action="store_true", help="also write what every stage computed")
    robot = parser.add_argument_group("one observation")
    robot.add_argument(
        "--image", action="append", default=[], metavar="CAMERA=FILE", help="a camera's image; repeat it"
    )
    robot.add_argument("--instruction", metavar="TEXT", help="what the robot should do")
    robot.add_argument("--state", metavar="NUMBERS", help="the robot's state, in its own units, separated by commas")
    robot.add_argument("--truncate-prompt", action="store_true", help="cut a prompt that is too long")
    parser.add_argument("--out", metavar="FILE", help="safetensors file to write: actions, and the trace")
    parser.add_argument("--policy", metavar="FILE", help="policy file (default: $PHYAI_KERNEL_CONFIG)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 or auto (default: cpu)")
    parser.add_argument("--dtype", metavar="DTYPE", help="precision of the parameters (default: the checkpoint's own)")
    parser.add_argument("--steps", type=steps, metavar="N", help="Euler steps (default: the checkpoint's)")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the noise (default: random)")
    parser.add_argument("--no-savings", action="store_true", help="compute also what the answer does not depend on")


def run(family: str, args: argparse.Namespace, context: Context) -> int:
    """Run the command for one of the two models."""
    _check_usage(args)
    from phyai.engine import DeviceConfig, Engine, EngineArgs, EngineConfig

    from phyai_models.pi.model import Savings

    plugin = context.model(family)
    plugin_args = plugin.arguments_class()(
        checkpoint_dir=args.checkpoint,
        num_steps=args.steps,
        seed=args.seed,
        truncate_prompt=args.truncate_prompt,
        savings=Savings.none() if args.no_savings else Savings(),
        progress=_Progress(context),
    )
    config = EngineConfig(DeviceConfig(args.device, args.dtype))
    policy = context.policy(args.policy)
    with Engine(EngineArgs(family, plugin_args, config), policy=policy, catalog=context.catalog) as engine:
        started = time.perf_counter()
        tensors = _run_batch(args, engine) if args.inputs else _run_observation(args, engine)
        seconds = time.perf_counter() - started
        if args.out:
            _write(Path(args.out), tensors)
        _report(args, context, engine, tensors["actions"], seconds)
    return Exit.OK


def _check_usage(args: argparse.Namespace) -> None:
    observation = [name for name in ("image", "instruction", "state") if getattr(args, name) not in (None, [])]
    if args.inputs and observation:
        raise UsageError(f"--inputs brings everything; leave out --{', --'.join(observation)}")
    if not args.inputs and len(observation) < 3:
        raise UsageError("give --inputs FILE, or all of --image CAMERA=FILE, --instruction and --state")
    if args.trace and not (args.inputs and args.out):
        raise UsageError("--trace goes with --inputs and --out: it writes what every stage computed")
    if args.inputs and not args.out:
        raise UsageError("--inputs goes with --out FILE: where the actions are written")
    if args.out and not Path(args.out).parent.is_dir():
        raise InputError(f"--out {args.out} cannot be written: there is no folder {Path(args.out).parent}")


def _run_batch(args: argparse.Namespace, engine: Engine) -> dict[str, torch.Tensor]:
    from phyai.files.safetensors_file import read_all

    from phyai_models.pi.hosted import LerobotBatch

    try:
        tensors = read_all(Path(args.inputs))
    except CheckpointError as error:
        raise InputError(str(error)) from error
    result = engine.step(LerobotBatch(tensors, trace=args.trace))
    return {"actions": result.actions, **result.stages}


def _run_observation(args: argparse.Namespace, engine: Engine) -> dict[str, torch.Tensor]:
    from phyai_models.pi.inputs import Observation

    try:
        state = [float(number) for number in args.state.replace(",", " ").split()]
    except ValueError as error:
        raise UsageError(f"--state {args.state!r}: give numbers, separated by commas") from error
    images: dict[str, Any] = {}
    for item in args.image:
        camera, _, path = item.partition("=")
        if not camera or not path:
            raise UsageError(f"--image {item!r}: give CAMERA=FILE")
        if camera in images:
            raise UsageError(f"--image: camera {camera} is given twice")
        images[camera] = _read_image(Path(path))
    chunk = engine.step(Observation(images, args.instruction, state))
    return {"actions": chunk.actions}


def _read_image(path: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError) as error:
        raise InputError(f"{path} cannot be read as an image: {error}") from error


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a safetensors file; it appears complete or not at all."""
    from safetensors.torch import save

    data = save({name: value.contiguous() for name, value in tensors.items()})
    try:
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise InputError(f"--out {path} cannot be written: {error.strerror or error}") from error


def _report(args: argparse.Namespace, context: Context, engine: Engine, actions: torch.Tensor, seconds: float) -> None:
    from phyai.engine.decisions import COLUMNS, cells, decision_rows

    report = engine.dispatcher.report()
    rows = decision_rows(report)
    if context.json:
        answer: dict[str, Any] = {"device": str(engine.host.environment.device), "seconds": round(seconds, 6)}
        answer |= {"out": args.out} if args.out else {}
        answer |= {} if args.inputs else {"actions": actions.tolist()}
        answer |= {"decisions": [row.to_json() for row in rows], "unmatched_rules": [str(r) for r in report.unmatched]}
        context.emit(answer)
        return
    context.table(COLUMNS, [cells(row) for row in rows], title="which kernel ran each part, and why")
    for rule in report.unmatched:
        context.note(f"rule {rule} matched no call")
    shape = " × ".join(map(str, actions.shape))
    context.say(
        f"\nactions {shape} in {seconds:.3f} s (first call, deciding included)"
        + (f", written to {args.out}" if args.out else "")
    )
    if not args.inputs:
        lines = [" ".join(f"{value:8.4f}" for value in row) for row in actions.tolist()]
        context.say("\n".join(lines))


class _Progress:
    """A progress line on stderr while weights are read, on terminals and for large checkpoints only."""

    def __init__(self, context: Context) -> None:
        self.stream = context.stderr
        self.shown = -1

    def __call__(self, done: int, total: int) -> None:
        if total < 64_000_000 or not self.stream.isatty():
            return
        percent = 100 * done // total
        if percent != self.shown:
            self.shown = percent
            self.stream.write(
                f"\rloading weights: {percent:3d} % of {total / 1e9:.1f} GB" + ("\n" if done >= total else "")
            )
            self.stream.flush()
