"""Test whether the kernels of a backend do what they declare, with calls drawn from inside their capability.

Results are compared with the reference in float64. A kernel that this machine cannot run is skipped, and said so; one
that could be run and was not exercised is a failure."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyai.cli.command import Context, Exit, UsageError
from phyai.errors import PhyAIError

if TYPE_CHECKING:
    from phyai.testing.report import Report, SubjectReport

EXAMPLES = """
  phyai conformance mine                                  # every kernel and quantization format of a backend
  phyai conformance torch --kernel 'torch.gemm.*' --seconds 30
  phyai conformance mine --strict --json > report.json    # for CI
  phyai conformance mine --output report.json             # kept after every kernel, whatever ends the run
  phyai conformance torch --kernel torch.gemm.fp32 --call '{"dims":{"M":3,"N":4,"K":5},"dtypes":"fp32"}'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", metavar="NAME", help="a backend (the first part of kernel ids), or a plug-in")
    parser.add_argument(
        "--kernel", action="append", metavar="ID", help="only this kernel, or a glob of ids; repeatable"
    )
    parser.add_argument("--check", action="append", metavar="CHECK", help="only this check; repeatable")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<index>")
    parser.add_argument("--seconds", type=_positive, default=60.0, help="no call begins after so long (default: 60)")
    parser.add_argument("--calls", type=int, default=100, help="calls drawn per kernel at most (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="what the drawn calls follow from (default: 0)")
    parser.add_argument("--call", metavar="JSON", help="only this call, as a failure prints it")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="also keep the JSON report there, from kernel to kernel"
    )
    parser.add_argument("--strict", action="store_true", help="a kernel that this machine cannot run is a failure too")


def main(args: argparse.Namespace, context: Context) -> int:
    from phyai.testing.conformance import conform, replay

    def keep(report: Report) -> None:
        if args.output is not None:
            _write(args.output, _json(report, args.strict))

    environment = context.machine(args.device)
    if args.call is not None:
        report = replay(
            args.backend, _parsed(args.call), context.catalog, environment, kernels=args.kernel, checks=args.check
        )
        keep(report)
    else:
        with context.progress("conformance") as progress:
            report = conform(
                args.backend,
                context.catalog,
                environment,
                kernels=args.kernel,
                checks=args.check,
                seconds=args.seconds,
                calls=args.calls,
                seed=args.seed,
                progress=progress,
                keep=keep,
            )
    data = _json(report, args.strict)
    if context.json:
        context.emit(data)
    else:
        _show(report, args.strict, context)
    return Exit.OK if data["passed"] else Exit.REFUSED


def _json(report: Report, strict: bool) -> dict[str, Any]:
    return {**report.to_json(), "passed": report.passed and not (strict and report.skipped())}


def _write(path: Path, data: dict[str, Any]) -> None:
    from phyai.files.replacing import replacing

    try:
        with replacing(path) as file:
            file.write((json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise PhyAIError(f"--output {path} cannot be written: {error.strerror or error}") from error


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0 seconds")
    return value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"--call takes JSON, as a failure prints it: {error}") from None


def _show(report: Report, strict: bool, context: Context) -> None:
    rows = [(s.name, s.outcome.value, str(s.calls), _checks(s)) for s in report.subjects]
    context.table(("tested", "outcome", "calls", "checks"), rows)
    for subject, check in report.failures():
        context.say(f"{subject.name}: {check.name}: {check.reason}")
        if check.line:
            context.say(f"    → {check.line}")
    for reason, names in report.reasons().items():
        context.say(f"skipped, {reason}: {', '.join(names)}")
    skipped = report.skipped()
    if skipped and strict:
        context.say(f"failed, as --strict asks: {len(skipped)} could not be run on {report.device}")
    if not report.passed and not report.failures():
        context.say("failed: nothing was exercised")
    counts = report.counts()
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    context.say(f"{said or 'nothing'} on {report.device} in {report.seconds:.1f} s (seed {report.seed})")


def _checks(subject: SubjectReport) -> str:
    return " ".join(f"{check.name}:{check.calls}" for check in subject.checks if check.calls) or subject.reason
