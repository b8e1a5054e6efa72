"""What a sub-command is, and what it is given.

A sub-command is a module that imports nothing heavy at its top::

    \"\"\"One sentence that ``--help`` shows.\"\"\"

    EXAMPLES = \"\"\"
      phyai ops gemm
    \"\"\"

    def add_arguments(parser: argparse.ArgumentParser) -> None: ...

    def main(args: argparse.Namespace, context: Context) -> int: ...

``--json`` and ``--debug`` are added to every one. A :class:`phyai.errors.PhyAIError` that ``main`` raises becomes one
clean message and exit status 1; a :class:`UsageError` becomes exit status 2. Distributions contribute sub-commands with
the hook ``phyai_commands``.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import attrs

from phyai.errors import DeclarationError, PhyAIError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from phyai.catalog import Catalog
    from phyai.engine import ModelPlugin
    from phyai.environment import Environment
    from phyai.policy import Policy


class Exit(enum.IntEnum):
    """Exit statuses of every sub-command. Scripts may rely on them."""

    OK = 0
    REFUSED = 1  #: a problem was found, or what was asked for was refused; the message says why
    USAGE = 2  #: the command line is wrong
    INTERNAL = 3  #: a defect of PhyAI or of a plug-in
    INTERRUPTED = 130  #: Ctrl-C
    BROKEN_PIPE = 141  #: whoever read the output stopped reading
    STOPPED = 143  #: SIGTERM


class UsageError(PhyAIError):
    """The arguments of a command do not go together, or one is missing; the message says what to give."""


@attrs.define(slots=False)
class Context:
    """What a sub-command is given: where to write, the process environment, the catalog when it asks for it."""

    json: bool = False
    debug: bool = False
    env: Mapping[str, str] = attrs.field(factory=lambda: os.environ)
    stdout: TextIO = attrs.field(factory=lambda: sys.stdout)
    stderr: TextIO = attrs.field(factory=lambda: sys.stderr)
    given_catalog: Catalog | None = None

    @functools.cached_property
    def catalog(self) -> Catalog:
        """The catalog of the installed plug-ins, discovered at the first use."""
        if self.given_catalog is not None:
            return self.given_catalog
        from phyai.plugins import discover

        return discover(self.env)

    def model(self, name: str) -> ModelPlugin:
        """The model plug-in that the command line names.

        Raises:
            UsageError: there is none; the message lists those that are there, and broken plug-ins.
        """
        try:
            model: ModelPlugin = self.catalog.model(name)
        except DeclarationError as error:
            raise UsageError(str(error)) from None
        return model

    def environment(self, device: str = "auto") -> Environment:
        """The environment of ``device``: ``auto``, ``cpu``, ``cuda:1`` are of this machine, ``h200`` or ``sm90`` need
        not be.

        Raises:
            DeviceError: no such device is here, or the device catalogue does not know it.
        """
        from phyai.environment import Environment

        if device in ("auto", "cpu") or device.partition(":")[0] == "cuda":
            return self.machine(device)
        return Environment.simulated(device, libraries=self.catalog.libraries)

    def machine(self, device: str = "auto") -> Environment:
        """The environment of ``device`` of this machine, where kernels are to run.

        Raises:
            DeviceError: no such device is here.
        """
        from phyai.environment import Environment

        return Environment.detect(device, libraries=self.catalog.libraries)

    def policy(self, file: str | None = None, profile: str | None = None) -> Policy:
        """The policy in force: ``file``, else the one that ``PHYAI_KERNEL_CONFIG`` names, over the shipped default.

        What its reader should know of it is noted on stderr.

        Raises:
            PolicyError: the file or the profile is refused.
        """
        from phyai.policy import policy_from_environment

        loaded = policy_from_environment(self.env, file, profile, catalog=self.catalog)
        for warning in loaded.warnings:
            self.note(f"phyai: warning: {warning}")
        return loaded.policy

    @functools.cached_property
    def console(self) -> Console:
        """Where people read. Plain and unwrapped when it is not a terminal; ``NO_COLOR`` and ``COLUMNS`` hold."""
        from phyai.cli.output import make_console

        return make_console(self.stdout, self.env)

    def emit(self, data: Any) -> None:
        """Write ``data`` as JSON."""
        self.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
        """Write a table for people."""
        from phyai.cli.output import make_table, plain_table

        if self.console.is_terminal:
            self.console.print(make_table(columns, rows, title=title))
        else:
            self.stdout.write(plain_table(columns, rows, title=title))

    def show(self, renderable: RenderableType) -> None:
        """Write something that rich renders; as plain lines where there is no terminal."""
        if self.console.is_terminal:
            self.console.print(renderable)
            return
        with self.console.capture() as capture:
            self.console.print(renderable)
        for line in capture.get().splitlines():
            self.stdout.write(line.rstrip() + "\n")

    def say(self, text: str = "") -> None:
        """Write a line for people; markup is not interpreted."""
        self.console.print(text, markup=False, highlight=False)

    @contextlib.contextmanager
    def progress(self, what: str) -> Iterator[Callable[[float, float], None]]:
        """A bar on stderr for long work: the function that it gives takes what is done and the total.

        Draws only on a terminal, and removes itself.
        """
        if not self.stderr.isatty():
            yield lambda _done, _total: None
            return
        from rich.progress import Progress

        from phyai.cli.output import make_console

        with Progress(console=make_console(self.stderr, self.env), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def note(self, text: str) -> None:
        """Write a line to stderr: progress, warnings, what is not the answer."""
        self.stderr.write(text + "\n")
