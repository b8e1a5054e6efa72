"""List the plug-ins that are installed: what each contributes, and what is wrong with those that do not work."""

from __future__ import annotations

import argparse
import logging
from typing import Any

import attrs

from phyai.cli.command import Context, Exit

EXAMPLES = """
  phyai backends
  phyai backends --check          # status 1 when one does not work
  PHYAI_DISABLE_PLUGINS=humming phyai backends --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="exit with status 1 when a plug-in is not ready")


def main(args: argparse.Namespace, context: Context) -> int:
    log = logging.getLogger("phyai.plugins")
    log.addFilter(_nothing)  # the table says it
    try:
        catalog = context.catalog
    finally:
        log.removeFilter(_nothing)
    environment = context.environment()
    rows: list[dict[str, Any]] = [
        {**attrs.asdict(status), "state": status.state.value, "usable": status.state.usable}
        for status in catalog.plugins
    ]
    if context.json:
        libraries = dict(environment.libraries)
        context.emit({"device": attrs.asdict(environment.device), "libraries": libraries, "plugins": rows})
    else:
        context.say(f"device: {environment.device}")
        found = ", ".join(f"{name} {version}" for name, version in environment.libraries.items())
        context.say(f"libraries: {found or 'none'}")
        context.table(
            ("plug-in", "kind", "distribution", "state", "provides"),
            [
                (
                    row["name"],
                    row["group"].removeprefix("phyai."),
                    " ".join(filter(None, (row["distribution"], row["version"]))),
                    row["state"],
                    ", ".join(f"{count} {_noun(kind, count)}" for kind, count in row["provides"].items()),
                )
                for row in rows
            ],
        )
        if not rows and catalog.lacks_backends:
            context.say(catalog.lacks_backends)
        for row in rows:
            if row["reason"]:
                context.say(f"{row['name']}: {row['reason']}")
                if row["advice"]:
                    context.say(f"    → {row['advice']}")
    ready = all(row["state"] in ("ready", "disabled") for row in rows)
    return Exit.OK if ready or not args.check else Exit.REFUSED


def _noun(kind: str, count: int) -> str:
    words = kind.replace("_", " ")
    return words if count != 1 else "library" if kind == "libraries" else words.removesuffix("s")


def _nothing(_: logging.LogRecord) -> bool:
    return False
