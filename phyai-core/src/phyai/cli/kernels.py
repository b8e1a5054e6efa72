"""List the kernels that are installed, or describe one: what it can compute, and what it promises."""

from __future__ import annotations

import argparse
import fnmatch
import json
from typing import Any

from phyai.cli.command import Context, Exit
from phyai.kernel import Kernel

EXAMPLES = """
  phyai kernels --op gemm
  phyai kernels 'torch.*'
  phyai kernels torch.gemm.bf16         # one id: everything it declares
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", metavar="ID", help="an id, or a glob of ids")
    parser.add_argument("--op", help="only kernels of this op (or alias)")


def main(args: argparse.Namespace, context: Context) -> int:
    catalog = context.catalog
    kernels = catalog.kernels_of(args.op) if args.op else catalog.kernels
    if args.pattern and not any(c in args.pattern for c in "*?["):
        kernel = catalog.kernel(args.pattern)
        return _describe(kernel, context)
    if args.pattern:
        wanted = catalog.canonical_id(args.pattern)
        kernels = tuple(kernel for kernel in kernels if fnmatch.fnmatchcase(kernel.id, wanted))
    if context.json:
        context.emit([_record(kernel, context) for kernel in kernels])
    else:
        context.table(
            ("kernel", "band", "rank", "capture", "reproducible", "layouts", "distribution"),
            [
                (
                    kernel.id,
                    _bands(kernel),
                    str(kernel.rank),
                    kernel.capture.value,
                    "yes" if kernel.numerics.reproducible else "no",
                    " ".join(kernel.layouts),
                    _distribution(kernel, context),
                )
                for kernel in kernels
            ],
        )
        absent = catalog.lacks_backends
        if absent is not None or not kernels:
            context.say(absent or "no kernel")
    return Exit.OK


def _describe(kernel: Kernel, context: Context) -> int:
    record = _record(kernel, context)
    if context.json:
        context.emit(record)
        return Exit.OK
    context.say(f"{kernel.id}: {kernel.doc}" if kernel.doc else kernel.id)
    for name, value in record.items():
        if name not in ("id", "doc"):
            context.say(f"{name + ':':17}{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return Exit.OK


def _bands(kernel: Kernel) -> str:
    """The band, and those that it has on some calls only."""
    return "/".join(band.name.lower() for band in (kernel.band, *(band for band, _ in reversed(kernel.bands))))


def _distribution(kernel: Kernel, context: Context) -> str:
    owner = context.catalog.owner(kernel.id)
    return (owner.distribution or owner.name) if owner else ""


def _record(kernel: Kernel, context: Context) -> dict[str, Any]:
    return {
        "id": kernel.id,
        "op": kernel.op,
        "doc": kernel.doc,
        "band": kernel.band.name.lower(),
        "bands": {band.name.lower(): where.to_yaml() for band, where in kernel.bands},
        "rank": kernel.rank,
        "capture": kernel.capture.value,
        "reproducible": kernel.numerics.reproducible,
        "batch_invariant": kernel.numerics.batch_invariant,
        "accumulation": kernel.numerics.accumulation,
        "layouts": list(kernel.layouts),
        "specializes_on": list(kernel.specializes_on),
        "params": [
            {"name": p.name, "default": p.default, "values": list(p.values) if p.values else None, "doc": p.doc}
            for p in kernel.params
        ],
        "distribution": _distribution(kernel, context),
        "when": kernel.when.to_yaml(),
    }
