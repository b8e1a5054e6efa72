"""`phyai run`, and other commands that plug-ins contribute."""

from __future__ import annotations

import sys

import pytest
from phyai.cli import Exit


@pytest.fixture
def toy_command(tmp_path, monkeypatch):
    (tmp_path / "toy_model_command.py").write_text(
        '"""Play."""\n'
        "EXAMPLES = '  phyai run toy --speed 3'\n"
        "def add_arguments(parser):\n    parser.add_argument('--speed', type=int, default=1)\n"
        "def main(args, context):\n    context.emit({'speed': args.speed, 'json': context.json})\n    return 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("toy_model_command", None)


def test_run_lists_models(phyai):
    assert [model["name"] for model in phyai("run", "--json").data] == ["mute", "toy"]


@pytest.mark.usefixtures("toy_command")
def test_run_hands_over_to_the_models_own_command(phyai):
    result = phyai("run", "toy", "--speed", "3")
    assert (result.status, result.data) == (7, {"speed": 3, "json": False})
    assert phyai("run", "toy", "--json").data == {"speed": 1, "json": True}
    assert phyai("run", "--json", "toy").data == {"speed": 1, "json": True}
    help_text = phyai("run", "toy", "--help").out
    assert "phyai run toy --speed 3" in help_text
    assert "Play." in help_text
    assert phyai("run", "toy", "--sped", "3").status == Exit.USAGE


def test_run_of_a_model_that_cannot_run(phyai):
    result = phyai("run", "mute")
    assert result.status == Exit.REFUSED
    assert "no command of its own" in result.err
