"""Every command and every code block of the README does what it says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


COMMANDS = [line for block in blocks("bash") for line in block.strip().splitlines()]
SESSIONS = [line for line in COMMANDS if "nox -s" in line]
PHYAI = [line for line in COMMANDS if line.startswith("phyai ")]


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """A directory as a reader of the README has it: the policy, two photographs, the example checkpoint."""
    from skimage import data, io

    path = tmp_path_factory.mktemp("desk")
    (policy,) = blocks("yaml")
    (path / "policy.yaml").write_text(policy, encoding="utf-8")
    io.imsave(path / "cup.png", data.coffee(), check_contrast=False)
    io.imsave(path / "cat.png", data.chelsea(), check_contrast=False)
    shutil.copytree(ROOT / "examples", path / "examples")
    return path


def run(arguments: list[str], desk: Path) -> subprocess.CompletedProcess[str]:
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": scripts + os.pathsep + os.environ["PATH"]}
    return subprocess.run(arguments, cwd=desk, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("command", PHYAI)
def test_command_succeeds(command, desk):
    done = run(shlex.split(command), desk)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_python_block_prints_the_shape_of_the_chunk(desk):
    (source,) = blocks("python")
    done = run([sys.executable, "-c", source], desk)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["torch.Size([50,", "7])"]


def test_ci_runs_the_two_sessions_that_the_readme_names():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    names = [line.split("nox -s ")[1] for line in SESSIONS]
    assert names == ["demo", "tests"]
    assert all(f"nox -s {name}" in script for name in names)
