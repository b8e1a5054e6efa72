"""Time a model on this machine: every stage, beside its floor and a plain PyTorch implementation."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from phyai.cli.command import Context, Exit, UsageError
from phyai.errors import InputError, PhyAIError
from phyai.install import install

from phyai_models.pi.config import FAMILIES
from phyai_models.pi.options import count, seconds, steps

EXAMPLES = """
  phyai bench pi05 --random-weights --baseline torch
  phyai bench pi05 --checkpoint ./checkpoint --cameras 2 --prompt-tokens 48 --policy policies/pi05/h200_bf16.yaml
  phyai bench pi05 --random-weights --timeline timeline.png --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=f"the model: {' or '.join(FAMILIES)}")
    weights = parser.add_mutually_exclusive_group(required=True)
    weights.add_argument("--checkpoint", metavar="DIR", help="directory with config.json and the weights")
    weights.add_argument(
        "--random-weights", action="store_true", help="random weights in the published architecture; no checkpoint"
    )
    parser.add_argument("--cameras", type=count, metavar="N", help="images per request (default: the model's)")
    parser.add_argument(
        "--prompt-tokens", type=count, metavar="N", help="valid prompt tokens (default: the model's most, at most 200)"
    )
    parser.add_argument("--batch", type=count, default=1, metavar="N", help="requests at a time (default: 1)")
    parser.add_argument("--steps", type=steps, metavar="N", help="Euler steps (default: the model's, 10)")
    parser.add_argument(
        "--exact", action="store_true", help="a recording of its own for this prompt length, in place of a bucket"
    )
    parser.add_argument("--policy", metavar="FILE", help="policy file (default: $PHYAI_KERNEL_CONFIG)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 or auto (default: auto)")
    parser.add_argument("--dtype", default="bf16", help="precision of the parameters (default: bf16)")
    parser.add_argument("--runs", type=count, default=50, metavar="N", help="timed runs (default: 50)")
    parser.add_argument("--warmup", type=count, default=10, metavar="N", help="runs before them (default: 10)")
    parser.add_argument(
        "--baseline", action="append", default=[], choices=("torch", "sdpa", "compile"),
        help="also time the same weights in plain PyTorch in one CUDA graph: with explicit attention (torch), with "
        "scaled_dot_product_attention (sdpa), or that through torch.compile (compile); repeat it",
    )  # fmt: skip
    parser.add_argument(
        "--compile-seconds", type=seconds, metavar="S", help="how long --baseline compile may compile (default: 240)"
    )
    parser.add_argument("--samples", type=count, default=8, metavar="N", help="samples that are compared (default: 8)")
    parser.add_argument(
        "--timeline", type=Path, metavar="PNG", help="also draw the kernels of every stage; needs phyai-models[demo]"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of weights and inputs (default: 0)")


def main(args: argparse.Namespace, context: Context) -> int:
    from phyai_models.bench.measure import COMPILE_SECONDS, Options, measure
    from phyai_models.pi.hosted import RandomCheckpoint

    if context.model(args.model).name not in FAMILIES:
        raise UsageError(f"this times {' and '.join(FAMILIES)}; {args.model} is another model")
    if args.compile_seconds is not None and "compile" not in args.baseline:
        raise UsageError("--compile-seconds goes with --baseline compile: it says how long that may compile")
    if args.timeline is not None:
        _check_timeline(args.timeline)
    options = Options(
        family=args.model,
        weights=RandomCheckpoint(seed=args.seed) if args.random_weights else args.checkpoint,
        device=args.device,
        dtype=args.dtype,
        cameras=args.cameras,
        prompt=args.prompt_tokens,
        batch=args.batch,
        steps=args.steps,
        exact=args.exact,
        runs=args.runs,
        warmup=args.warmup,
        samples=args.samples,
        baselines=tuple(dict.fromkeys(args.baseline)),
        compile_seconds=args.compile_seconds or COMPILE_SECONDS,
        timeline=args.timeline,
        seed=args.seed,
    )
    policy = context.policy(args.policy)
    record = measure(options, policy=policy, catalog=context.catalog, say=lambda text: context.note(f"phyai: {text}"))
    if context.json:
        context.emit(record)
    else:
        _show(record, context)
    return Exit.OK


def _check_timeline(path: Path) -> None:
    """Refuse before anything is timed what could not be drawn afterwards."""
    if find_spec("matplotlib") is None:
        raise PhyAIError(f"a timeline needs matplotlib: {install('phyai-models[demo]')}")
    if path.suffix.lower() != ".png" or path.is_dir():
        raise InputError(f"--timeline {path} cannot be written: give a file whose name ends in .png")
    if not path.parent.is_dir():
        raise InputError(f"--timeline {path} cannot be written: there is no folder {path.parent}")


def _where(name: str, stage: dict[str, Any], *, gaps: bool) -> list[tuple[str, ...]]:
    from phyai_models.bench.words import or_dash

    kinds: list[tuple[str, ...]] = [
        (name, kind, str(found["kernels"]), f"{found['us'] / 1e3:.3f}",
         or_dash(found["floor_us"], ".3f", 1e-3))
        for kind, found in stage["by_kind"].items()
    ]  # fmt: skip
    if not gaps:  # of calls made once, by the clock, nothing is left to the stage's own time
        return kinds
    return [*kinds, (name, "gaps", "", f"{stage['gap_ms']:.3f}", "")]


def _show(record: dict[str, Any], context: Context) -> None:
    from phyai_models.bench.words import ceilings_in_words, memory_in_words, or_dash

    case = record["case"]
    what = f"{record['model']} on {record['device']}, torch {record['torch']}, {case['dtype']}"
    context.say(
        f"{what}, {case['weights']} weights, {record['shape']}\nceilings: {ceilings_in_words(record['ceilings'])}\n"
    )
    rows = [
        (
            name, *(f"{stage[key]:.2f}" for key in ("p50", "p90", "p99")),
            or_dash(stage["floor"], ".2f"), or_dash(stage["share_of_floor"], ".0%"), ", ".join(stage["ceilings"]),
            str(stage.get("kernels", "")), f"{stage['kernel_ms']:.2f}" if "kernel_ms" in stage else "",
        )
        for name, stage in record["stages"].items()
    ]  # fmt: skip
    columns = ("stage", "p50 ms", "p90", "p99", "floor ms", "floor/p50", "ceiling", "kernels", "in kernels ms")
    context.table(columns, rows, title="on the device")
    profiled = {name: stage for name, stage in record["stages"].items() if "by_kind" in stage}
    timed = "; ".join(dict.fromkeys(stage["by_site"]["timed"] for stage in profiled.values()))
    context.table(
        ("stage", "what", "kernels", "ms", "floor ms"),
        [row for n, stage in profiled.items() for row in _where(n, stage, gaps=record["execution"] == "graph")],
        title=f"where it goes, timed {timed}",
    )
    ends = [
        (name.replace("_", " "), *(f"{timing[key]:.2f}" for key in ("p50", "p90", "p99")))
        for name, timing in record["end_to_end"].items()
    ]
    context.table(("from … to", "p50 ms", "p90", "p99"), ends, title="what a caller waits for")
    context.say(f"memory: {memory_in_words(record['memory'])}")
    for name, found in record.get("baselines", {}).items():
        if "problem" in found:
            context.say(f"baseline {name}: {found['problem']}")
            continue
        context.say(
            f"baseline {name}: {found['p50']:.2f} ms, {found['times_faster']:.2f} times as long; worst cosine of "
            f"{found['samples']} samples {found['worst_cosine']:.6f} ({found['worst_cosine_without_noise']:.6f} "
            f"without the noise)"
        )
