"""Run π0.5: a batch from a file, or images, an instruction and a state."""

from __future__ import annotations

import argparse

from phyai.cli.command import Context

from phyai_models.pi import command

EXAMPLES = command.EXAMPLES.format(family="pi05")
add_arguments = command.add_arguments


def main(args: argparse.Namespace, context: Context) -> int:
    return command.run("pi05", args, context)
