"""How the command line writes: to files, and to terminals."""

from __future__ import annotations

import io

import pytest
from phyai.cli import Context, main


def test_output_that_is_not_for_a_terminal_is_plain_and_unwrapped(phyai):
    for argv in (("backends",), ("kernels",), ("explain", "--op", "gemm", "--device", "sm90")):
        out = phyai(*argv).out
        assert "\x1b" not in out
        assert not set(out) & set("─━│┃╭╮")
        assert all(line == line.rstrip() for line in out.splitlines())
    assert phyai("explain", "--op", "gemm", "--device", "sm90").out.count("shape.M") == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(catalog, *argv: str, **env: str) -> str:
    out = Terminal()
    main(argv, env={"TERM": "xterm-256color", **env}, stdout=out, stderr=io.StringIO(), catalog=catalog)
    return out.getvalue()


def test_a_terminal_gets_colour_unless_no_color_is_set(catalog):
    argv = ("explain", "--op", "gemm", "--device", "cpu")
    assert "\x1b[" in on_terminal(catalog, *argv, COLUMNS="100")
    without = on_terminal(catalog, *argv, COLUMNS="100", NO_COLOR="1")
    assert "\x1b[3" not in without  # bold may stay, colours may not


@pytest.mark.parametrize("columns", [60, 120])
def test_tables_fit_the_width_of_the_terminal(catalog, columns):
    from rich.text import Text

    out = on_terminal(catalog, "backends", COLUMNS=str(columns))
    lines = [Text.from_ansi(line).cell_len for line in out.splitlines()]
    assert max(lines) <= columns


def test_a_long_first_column_leaves_the_others_on_the_terminal():
    from phyai.cli.output import make_console, make_table

    shown = Terminal()
    table = make_table(("layer", "scheme"), [("model.layers." * 12, "w4a16")])
    make_console(shown, {"TERM": "xterm", "COLUMNS": "80"}).print(table)
    assert "w4a16" in shown.getvalue()


def test_progress_draws_on_a_terminal_only(catalog):
    shown, hidden = Terminal(), io.StringIO()
    for stream in (shown, hidden):
        with Context(stderr=stream, env={"TERM": "xterm", "COLUMNS": "80"}).progress("tuning") as update:
            update(1, 2)
    assert "tuning" in shown.getvalue()
    assert hidden.getvalue() == ""
