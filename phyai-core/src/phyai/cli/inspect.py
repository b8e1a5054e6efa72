"""Show what a checkpoint's quantization is, layer by layer, without loading weights.

Takes a folder, or a bare configuration file. The exit status is 1 when the checkpoint is refused.
"""

from __future__ import annotations

import argparse
from typing import Any

from phyai.cli.command import Context, Exit
from phyai.quant.importers import BUILTIN
from phyai.quant.inspection import inspect_checkpoint

EXAMPLES = """
  phyai inspect ./checkpoint
  phyai inspect ./hf_quant_config.json --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CKPT", help="a checkpoint folder or a configuration file")


def main(args: argparse.Namespace, context: Context) -> int:
    report = inspect_checkpoint(args.checkpoint, (*context.catalog.importers, *BUILTIN))
    if context.json:
        context.emit(report)
    else:
        _show(report, context)
    return Exit.OK if report["recognised"] and report["refused"] is None else Exit.REFUSED


def _show(report: dict[str, Any], context: Context) -> None:
    if not report["recognised"]:
        context.say(f"refused: {report['refused']}")
        if report["instead"]:
            context.say(f"what would work: {report['instead']}")
        return
    if report["quantized"]:
        context.say(f"{report['method']}, by {report['source']}")
    else:
        context.say("not quantized")
    for note in report["notes"]:
        context.say(f"note: {note}")
    if report["kv_cache"]:
        context.say(f"key/value cache: {report['kv_cache']}")
    if report["layers"]:
        rows = [
            (
                name,
                "x".join(str(size) for size in layer["shape"] or ()),
                layer["scheme"] or "unquantized",
                "" if layer["input"] is None else f"{layer['input']['dtype']} {layer['input']['granularity']}",
                layer["refused"] or "; ".join(layer["notes"]),
            )
            for name, layer in report["layers"].items()
        ]
        context.table(("layer", "shape", "scheme", "input", "notes"), rows)
    else:
        rules = [
            (rule["id"], _match(rule), (rule["scheme"] or {}).get("name", "unquantized")) for rule in report["rules"]
        ]
        context.table(("rule", "layers", "scheme"), rules)
    if report["refused"]:
        context.say(f"refused: {report['refused']}")


def _match(rule: dict[str, Any]) -> str:
    if rule["match"] == [{}]:
        return "every linear layer"
    return ", ".join(" and ".join(f"{k} {v}" for k, v in one.items()) for one in rule["match"])
