"""List the ops that models call, or describe one: its mathematics, tensors, attributes and facts."""

from __future__ import annotations

import argparse
from typing import Any

from phyai.cli.command import Context, Exit
from phyai.op import Op, Tensor

EXAMPLES = """
  phyai ops
  phyai ops layernorm             # an alias works
  phyai ops attention --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op", nargs="?", metavar="OP", help="describe this op (or alias)")


def main(args: argparse.Namespace, context: Context) -> int:
    if args.op is None:
        _list(context)
    else:
        _describe(context.catalog.op(args.op), context)
    return Exit.OK


def _list(context: Context) -> None:
    catalog = context.catalog
    if context.json:
        context.emit([_record(op, context) for op in catalog.ops])
        return
    context.table(
        ("op", "kernels", "aliases", "what it computes"),
        [
            (
                op.name,
                str(len(catalog.kernels_of(op.name))),
                ", ".join(op.aliases),
                (op.doc.strip().splitlines() or [""])[0],
            )
            for op in catalog.ops
        ],
    )


def _describe(op: Op, context: Context) -> None:
    if context.json:
        context.emit(_record(op, context))
        return
    context.say(op.doc.strip())
    context.table(
        ("tensor", "kind", "shape", "dtypes", "meaning"),
        [
            (
                _tensor(t),
                t.kind,
                f"[{', '.join(t.dims)}]",
                " ".join(t.dtypes),
                t.doc,
            )
            for t in op.tensors
        ],
    )
    if op.attributes:
        context.table(
            ("attribute", "default", "values", "meaning"),
            [(a.name, str(a.default), " ".join(map(str, a.values or ())), a.doc) for a in op.attributes],
        )
    if op.parts:
        context.table(("part", "op"), [(part.name, part.op) for part in op.parts])
    context.table(
        ("fact", "kind", "known", "meaning"),
        [(f.name, f.kind.value, "per call" if f.dynamic else "when bound", f.doc) for f in op.fact_specs()],
    )
    kernels = ", ".join(kernel.id for kernel in context.catalog.kernels_of(op.name))
    context.say(f"kernels: {kernels or 'none'}")


def _tensor(tensor: Tensor) -> str:
    written = " (mutated)" if tensor.mutated else " (in part scratch)" if tensor.scratch else ""
    return tensor.name + ("?" if tensor.optional else "") + written


def _record(op: Op, context: Context) -> dict[str, Any]:
    return {
        "name": op.name,
        "aliases": list(op.aliases),
        "doc": op.doc,
        "composite": op.composite,
        "parts": {part.name: part.op for part in op.parts},
        "tensors": [
            {
                "name": t.name,
                "kind": t.kind,
                "shape": list(t.dims),
                "dtypes": list(t.dtypes),
                "optional": t.optional,
                "mutated": t.mutated,
                "scratch": t.scratch is not None,
            }
            for t in op.tensors
        ],
        "attributes": [
            {"name": a.name, "default": a.default, "values": list(a.values) if a.values else None}
            for a in op.attributes
        ],
        "facts": [{"name": f.name, "kind": f.kind.value, "dynamic": f.dynamic} for f in op.fact_specs()],
        "arg_specs": [spec.name for spec in op.arg_specs],
        "kernels": [kernel.id for kernel in context.catalog.kernels_of(op.name)],
    }
