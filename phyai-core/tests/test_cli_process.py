"""The command in a process of its own: what it imports, how long that takes, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from phyai.cli import Exit
from phyai.cli.registry import BUILT_IN


def python(code: str, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(env or {})}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment, check=False
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["explain", "--device", "sm90", "--op", "gemm", "-s", "M=50"],
        ["policy", "check", "FILE"],
        ["policy", "show"],
        ["backends"],
        ["ops"],
        ["kernels"],
        ["run"],
    ],
)
def test_questions_never_import_torch(argv, policy_file):
    argv = [policy_file("schema: phyai.kernel/v1\n") if arg == "FILE" else arg for arg in argv]
    heavy = "[m for m in ('torch', 'numpy', 'triton', 'cupy') if m in sys.modules]"
    result = python(f"import sys; from phyai.cli import main; main({argv!r}); print({heavy}, file=sys.stderr)")
    assert result.stderr.splitlines()[-1] == "[]", result.stderr


def test_importing_phyai_takes_under_a_fifth_of_a_second():
    code = "import time; t = time.perf_counter(); import phyai; print(time.perf_counter() - t)"
    seconds = min(float(python(code).stdout) for _ in range(5))
    assert seconds < 0.2


def test_python_m_phyai_is_the_command():
    result = subprocess.run(
        [sys.executable, "-m", "phyai", "ops", "nothing"], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == Exit.REFUSED
    assert "phyai: unknown op 'nothing'" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_reader_that_goes_away_is_no_traceback():
    with subprocess.Popen(
        [sys.executable, "-m", "phyai", "ops", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        errors = process.stderr.read().decode()
        status = process.wait(timeout=120)
    assert status == Exit.BROKEN_PIPE
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors


def test_an_encoding_that_lacks_a_character_is_no_failure():
    code = "from phyai.cli import main; raise SystemExit(main(['ops', 'modulation']))"
    result = python(code, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert result.returncode == Exit.OK, result.stderr


def test_disabled_plugins_are_said_in_the_real_command():
    result = python(
        "from phyai.cli import main; main(['backends', '--json'])", env={"PHYAI_DISABLE_PLUGINS": "no-such-plugin"}
    )
    rows = {row["name"]: row for row in json.loads(result.stdout)["plugins"]}
    assert rows["no-such-plugin"]["state"] == "unknown"


def test_every_built_in_command_is_one_file_with_what_a_command_must_have():
    import importlib

    folder = Path(__file__).parents[1] / "src" / "phyai" / "cli"
    for command in BUILT_IN:
        module = importlib.import_module(command.module)
        assert callable(module.add_arguments)
        assert callable(module.main)
        assert Path(module.__file__).parent == folder
