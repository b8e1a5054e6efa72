"""Quantize a checkpoint by a policy and write it in the form of compressed-tensors, which other engines read too.

Loading the result gives, bit for bit, what quantizing the original when it is loaded gives.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from phyai.cli.command import Context, Exit, UsageError
from phyai.errors import InputError, PhyAIError
from phyai.install import install

from phyai_models.quantized.quiet import warnings_once

EXAMPLES = """
  phyai quantize ./checkpoint --policy policies/pi05/w4a16_g128.yaml --out ./checkpoint-w4a16
  phyai quantize ./checkpoint --policy policy.yaml --out ./small --report report.html --inputs observations.safetensors
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CKPT", help="a checkpoint folder in ordinary precision")
    parser.add_argument("--policy", required=True, metavar="FILE", help="the policy with the quantization section")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write; it must not exist")
    parser.add_argument(
        "--report", action="append", nargs="?", const="-", default=[], metavar="FILE",
        help="measure what it costs, and write it to FILE (.json, .html or .png; may be repeated); the table is shown",
    )  # fmt: skip
    parser.add_argument(
        "--inputs", metavar="FILE",
        help="observations to measure with (a batch in lerobot's names), or NAME.x for layers; default: made up",
    )  # fmt: skip
    parser.add_argument("--samples", type=int, metavar="N", help="observations and noises (default: 8)")


@warnings_once()
def main(args: argparse.Namespace, context: Context) -> int:
    from phyai_models.quantized.writing import plan_writing, write_quantized

    if not args.report and (args.inputs is not None or args.samples is not None):
        raise UsageError("--inputs and --samples go with --report: they say what it measures with")
    samples = 8 if args.samples is None else args.samples
    wrong = [name for name in args.report if name != "-" and Path(name).suffix not in (".json", ".html", ".png")]
    if wrong:
        raise UsageError(f"--report {wrong[0]}: the file's name must end in .json, .html or .png")
    if any(Path(name).suffix == ".png" for name in args.report) and find_spec("matplotlib") is None:
        raise PhyAIError(f"a picture needs matplotlib: {install('phyai-models[demo]')}")
    for name in args.report:
        if not Path(name).parent.is_dir():
            raise InputError(f"--report {name} cannot be written: there is no folder {Path(name).parent}")
    policy = context.policy(args.policy)
    plan_writing(args.checkpoint, policy, args.out, context.catalog)  # refuses before hours of measuring
    observer = None
    if args.report:
        from phyai_models.quantized.report import Observer

        with context.progress("watching the original") as advance:
            observer = Observer.of(args.checkpoint, policy, args.inputs, samples, context.catalog, advance)
    with context.progress("quantizing") as advance:
        written = write_quantized(
            args.checkpoint, policy, args.out, catalog=context.catalog, progress=advance,
            observe=None if observer is None else observer.observe,
        )  # fmt: skip
    report = None
    if observer is not None:
        with context.progress("comparing answers") as advance:
            report = observer.report(written, advance)
        for name in args.report:
            if name != "-":
                report.save(Path(name))
    if context.json:
        body = {
            "out": str(written.out), "bytes_before": written.before, "bytes_after": written.after,
            "kept": list(written.kept),
            "layers": [
                {
                    "name": s.name, "path": s.path, "scheme": s.scheme.name, "bytes_before": s.before,
                    "bytes_after": s.after,
                }
                for s in written.layers
            ],
        }  # fmt: skip
        context.emit(body if report is None else {**body, "report": report.to_json()})
        return Exit.OK
    if report is not None:
        report.show(context)
    share = written.after / written.before if written.before else 1.0
    context.say(
        f"{len(written.layers)} layers quantized, {len(written.kept)} kept; {written.before / 1e6:.1f} MB became "
        f"{written.after / 1e6:.1f} MB ({share:.0%}), in {written.out}"
    )
    return Exit.OK
