"""Tables and text for people: coloured and fitted on a terminal, plain and unwrapped anywhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Wide enough that nothing is wrapped or cut when the output goes to a file or to another program.
UNBOUNDED = 100_000
#: First columns up to so many characters are never broken; a longer one would push the others off the terminal.
_LONGEST_NAME = 48


class _Console(Console):
    """rich's console, except that a reader who stopped reading is the caller's affair."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(file: TextIO, env: Mapping[str, str]) -> Console:
    """A console on ``file``; ``env`` is where ``NO_COLOR``, ``COLUMNS`` and ``TERM`` are looked up."""
    terminal = file.isatty()
    columns = env.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else None
    return _Console(
        file=file,
        width=width if terminal or width else UNBOUNDED,
        soft_wrap=not terminal and width is None,
        force_terminal=terminal,
        no_color=bool(env.get("NO_COLOR")) or None,
        highlight=False,
        _environ=env,
    )


def make_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> Table:
    """A table for a terminal, fitted to its width."""
    table = Table(
        title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold"
    )
    whole = all(cell_len(row[0]) <= _LONGEST_NAME for row in rows)
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=index == 0 and whole)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> str:
    """The same table as aligned text: one line a row, two blanks between columns.

    >>> print(plain_table(("op", "kernels"), [("gemm", "3"), ("rope", "")]), end="")
    op    kernels
    gemm  3
    rope
    """
    lines = [tuple(columns), *(tuple(cell.replace("\n", " ") for cell in row) for row in rows)]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(columns))]
    text = [title] if title else []
    for line in lines:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
        text.append("  ".join(padded).rstrip())
    return "\n".join(text) + "\n"
