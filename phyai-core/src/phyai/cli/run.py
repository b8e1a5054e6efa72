"""Run a model under a policy. Each model has options of its own: ``phyai run MODEL --help``."""

from __future__ import annotations

import argparse
import importlib

from phyai.cli.command import Context, Exit
from phyai.cli.parsing import parser_of
from phyai.errors import PhyAIError
from phyai.install import install
from phyai.plugins.hooks import Command

EXAMPLES = """
  phyai run                       # which models are installed
  phyai run pi05 --help
  phyai run pi05 --checkpoint DIR --inputs inputs.safetensors --out out.safetensors --policy policy.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="name of the model")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the model's own options")


def main(args: argparse.Namespace, context: Context) -> int:
    if args.model is None:
        return _list(context)
    context.json = context.json or "--json" in args.arguments  # a refusal before they are parsed is JSON too
    model = context.model(args.model)
    if model.command is None:
        raise PhyAIError(f"the model {model.name} has no command of its own; use phyai.engine from Python")
    module = importlib.import_module(model.command)
    own = parser_of(Command(f"run {model.name}", model.doc, model.command), module).parse_args(args.arguments)
    context.json, context.debug = context.json or own.json, context.debug or own.debug
    status: int = module.main(own, context)
    return status


def _list(context: Context) -> int:
    models = context.catalog.models
    if context.json:
        context.emit([{"name": model.name, "doc": model.doc} for model in models])
    else:
        context.table(("model", "what it is"), [(model.name, model.doc) for model in models])
        if not models:
            context.say(f"no model is installed: {install('phyai-models')}")
    return Exit.OK
