"""The command line itself: finds the sub-command, parses, runs, and turns errors into messages and exit statuses."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from phyai.cli.command import Context, Exit, UsageError
from phyai.cli.parsing import EXIT_STATUSES, parser_of
from phyai.cli.registry import BUILT_IN, commands
from phyai.errors import PhyAIError, first_line
from phyai.memory import ran_out
from phyai.plugins.hooks import Command
from phyai.spelling import nearest

if TYPE_CHECKING:
    from phyai.catalog import Catalog


def main(
    argv: Sequence[str] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    catalog: Catalog | None = None,
) -> int:
    """Run ``phyai`` with ``argv`` and return its exit status (see :class:`phyai.cli.Exit`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    context = Context(given_catalog=catalog)
    context.env = os.environ if env is None else env
    context.stdout, context.stderr = stdout or sys.stdout, stderr or sys.stderr
    for stream in (context.stdout, context.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character still shows the rest
            stream.reconfigure(errors="backslashreplace")
    try:
        with (
            contextlib.redirect_stdout(context.stdout), contextlib.redirect_stderr(context.stderr), _log_to(context),
            _stoppable(),
        ):  # fmt: skip
            status = _guarded(arguments, context)
            context.stdout.flush()
    except BrokenPipeError:
        _discard(context.stdout)
        return Exit.BROKEN_PIPE
    return status


def _guarded(arguments: list[str], context: Context) -> int:
    try:
        context.debug = _debug_wanted(context.env)
        return _run(arguments, context)
    except SystemExit as exit_request:  # argparse, after it has printed help or a usage error
        return exit_request.code if isinstance(exit_request.code, int) else Exit.OK
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        context.note("phyai: interrupted")
        return Exit.INTERRUPTED
    except _Stopped:
        context.note("phyai: stopped by SIGTERM")
        return Exit.STOPPED
    except PhyAIError as error:
        _report(context, error, str(error))
        return Exit.USAGE if isinstance(error, UsageError) else Exit.REFUSED
    except ModuleNotFoundError as error:
        _report(context, error, f"{error}; the command needs it: pip install {error.name}")
        return Exit.REFUSED
    except OSError as error:
        if error.filename is None:
            return _unforeseen(context, error)
        _report(context, error, f"{error.filename}: {error.strerror}")
        return Exit.REFUSED
    except Exception as error:
        return _unforeseen(context, error)


def _unforeseen(context: Context, error: Exception) -> int:
    if ran_out(error):  # nobody's defect
        _report(context, error, f"memory ran out: {first_line(error)}")
        return Exit.REFUSED
    hint = "" if context.debug else "; PHYAI_DEBUG=1 shows the traceback, which a report should contain"
    _report(context, error, f"internal error: {type(error).__name__}: {error}{hint}")
    return Exit.INTERNAL


def _run(arguments: list[str], context: Context) -> int:
    if arguments and arguments[0] == "--version":
        import phyai

        context.say(f"phyai {phyai.__version__}")
        return Exit.OK
    if not arguments or arguments[0].startswith("-"):
        parser = _top_level(context)
        parser.parse_args(arguments)  # prints help or refuses the option, and leaves
        parser.print_help(context.stderr)
        return Exit.USAGE
    name, *rest = arguments
    command = next((command for command in BUILT_IN if command.name == name), None) or _contributed(name, context)
    module = importlib.import_module(command.module)
    args = parser_of(command, module).parse_args(rest)
    context.json, context.debug = args.json, context.debug or args.debug
    status: int = module.main(args, context)
    return status


def _top_level(context: Context) -> argparse.ArgumentParser:
    listed = commands(context.catalog)
    width = max(map(len, listed))
    order = [*(c.name for c in BUILT_IN), *sorted(set(listed) - {c.name for c in BUILT_IN})]
    lines = "\n".join(f"  {name:{width}}  {listed[name].help}" for name in order)
    parser = argparse.ArgumentParser(
        prog="phyai",
        usage="phyai [--version] COMMAND ...",
        description=f"Decide which kernel runs each part of a physical-AI model, and know why.\n\ncommands:\n{lines}",
        epilog=f"`phyai COMMAND --help` shows examples.\n{EXIT_STATUSES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show the version and leave")
    return parser


def _contributed(name: str, context: Context) -> Command:
    known = commands(context.catalog)
    if name in known:
        return known[name]
    near = nearest(name, known)
    hint = f"did you mean `phyai {near}`?" if near else "`phyai --help` lists the commands"
    context.note(f"phyai: unknown command {name!r}; {hint}")
    raise SystemExit(int(Exit.USAGE))


def _report(context: Context, error: BaseException, message: str) -> None:
    if context.debug:
        traceback.print_exception(error, file=context.stderr)
    context.note(f"phyai: {message}")
    if context.json:
        context.emit({"error": {"type": type(error).__name__, "message": str(error)}})


def _debug_wanted(env: Mapping[str, str]) -> bool:
    value = env.get("PHYAI_DEBUG", "").strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("", "0", "false", "no", "off"):
        return False
    raise PhyAIError(f"PHYAI_DEBUG={env['PHYAI_DEBUG']!r} is neither 1 nor 0")


class _Stopped(BaseException):
    """SIGTERM came."""


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM unwind as Ctrl-C does, so that what is half written goes; a second one ends the process at once.

    Where somebody else handles it, or this is not the main thread, everything stays as it is.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise _Stopped

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _log_to(context: Context) -> Iterator[None]:
    """Send what PhyAI logs to stderr, a line each, while the command runs."""
    logger = logging.getLogger("phyai")
    handler = logging.StreamHandler(context.stderr)
    handler.setFormatter(logging.Formatter("phyai: %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _discard(stream: TextIO) -> None:
    """Let the interpreter's last flush of ``stream`` go nowhere instead of failing."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
