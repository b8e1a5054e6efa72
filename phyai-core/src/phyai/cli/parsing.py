"""Parsers of sub-commands: the same options, examples and exit statuses everywhere."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import Any

from phyai.plugins.hooks import Command

EXIT_STATUSES = """
exit status: 0 done; 1 a problem was found or the request was refused; 2 wrong command line; 3 a defect of PhyAI or of a
plug-in; 130 interrupted; 141 the reader of the output went away; 143 stopped by SIGTERM

environment: PHYAI_KERNEL_CONFIG (policy file), PHYAI_KERNEL_PROFILE (static, autotune), PHYAI_KERNEL_TUNE_DIR (tuning
stores), PHYAI_DISABLE_PLUGINS (a,b), PHYAI_DEBUG (1 prints tracebacks), NO_COLOR, COLUMNS
"""


def parser_of(command: Command, module: ModuleType) -> argparse.ArgumentParser:
    """The parser of one sub-command, with the options that every one has."""
    parser = argparse.ArgumentParser(
        prog=f"phyai {command.name}",
        description=module.__doc__,
        epilog=epilog(getattr(module, "EXAMPLES", "")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_common(parser)
    module.add_arguments(parser)
    return parser


def add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    help: str,
    description: str | None,
    examples: str,
) -> argparse.ArgumentParser:
    """One action of a sub-command that has several, such as ``phyai policy check``."""
    parser = actions.add_parser(
        name,
        help=help,
        description=description,
        epilog=epilog(examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_common(parser, default=argparse.SUPPRESS)  # leaves alone what the parent has parsed
    return parser


def _add_common(parser: argparse.ArgumentParser, *, default: Any = False) -> None:
    group = parser.add_argument_group("common options")
    group.add_argument("--json", action="store_true", default=default, help="write JSON, for scripts")
    group.add_argument("--debug", action="store_true", default=default, help="print tracebacks")


def epilog(examples: str) -> str:
    """What stands below the options in ``--help``."""
    return f"examples:\n{examples.strip(chr(10))}\n{EXIT_STATUSES}" if examples else EXIT_STATUSES
