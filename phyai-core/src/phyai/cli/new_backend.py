"""Write a new backend: a complete distribution with two kernels, a quantization format and a conformance test, ready to
be built, installed and tested."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from phyai.cli.command import Context, Exit

EXAMPLES = """
  phyai new-backend sparkle                    # writes phyai-backend-sparkle/
  phyai new-backend sparkle --into ~/src --license MIT --author "Ada Lovelace"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from phyai.scaffold import LICENSES

    parser.add_argument("name", metavar="NAME", help="what kernel ids begin with: small letters, digits, - or _")
    parser.add_argument(
        "--into", type=Path, default=Path(), metavar="DIR", help="the folder to write into (default: .)"
    )
    parser.add_argument("--license", choices=LICENSES, default=LICENSES[0], help=f"default: {LICENSES[0]}")
    parser.add_argument("--author", metavar="NAME", help="copyright holder (default: the authors of the distribution)")


def main(args: argparse.Namespace, context: Context) -> int:
    import phyai
    from phyai.scaffold import TAKEN, names, write_backend

    named = names(args.name, {*TAKEN, *(kernel.backend for kernel in context.catalog.kernels)})
    target = args.into / named.distribution
    files = write_backend(
        target,
        named,
        license=args.license,
        author=args.author or f"the authors of {named.distribution}",
        year=datetime.datetime.now(tz=datetime.UTC).year,
        core=phyai.__version__,
    )
    if context.json:
        written = [str(file.relative_to(target)) for file in files]
        context.emit({"folder": str(target), "name": named.name, "package": named.package, "files": written})
        return Exit.OK
    for file in files:
        context.say(f"  {file}")
    context.say(f"next: pip install -e '{target}[test]' && phyai backends && phyai conformance {named.name}")
    return Exit.OK
