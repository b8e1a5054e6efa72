"""Every command of docs/quantization.md does what the page says."""

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
PAGE = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.strip().splitlines()
]


def yaml_block() -> str:
    (found,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    return found


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """A directory as a reader of the page has it: the policy, two photographs, the example checkpoint."""
    from skimage import data, io

    path = tmp_path_factory.mktemp("desk")
    (path / "policy.yaml").write_text(yaml_block(), encoding="utf-8")
    io.imsave(path / "cup.png", data.coffee(), check_contrast=False)
    io.imsave(path / "cat.png", data.chelsea(), check_contrast=False)
    shutil.copytree(ROOT / "examples" / "pi05-tiny", path / "examples" / "pi05-tiny")
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c.split()[:3]))
def test_command_succeeds(command, desk):
    """In the order of the page: later commands read what earlier ones wrote."""
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": scripts + os.pathsep + os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        shlex.split(command), cwd=desk, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_policy_of_the_page_is_the_preset():
    from ruamel.yaml import YAML

    preset = (ROOT / "policies" / "pi05" / "w8a16.yaml").read_text(encoding="utf-8")
    assert YAML(typ="safe").load(yaml_block()) == YAML(typ="safe").load(preset)
