"""A fresh environment with PhyAI's wheels, for tests of what strangers install beside them.

Nothing is downloaded: the environment sees torch and the other libraries of the one that runs the tests, but none of
PhyAI's distributions in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).parent.parent
_OURS = ("phyai", "__editable__", "_phyai")


@attrs.frozen
class FreshEnvironment:
    """An environment in ``folder``; wheels that are built for it lie beside it."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> FreshEnvironment:
        """With phyai-core and the reference backend, from their wheels."""
        made = cls(folder)
        run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
        site = made.python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        libraries = folder / "libraries"
        libraries.mkdir()
        for base in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for entry in Path(base).iterdir():
                if not entry.name.lower().startswith(_OURS) and entry.suffix != ".pth":
                    (libraries / entry.name).symlink_to(entry)
        (Path(site) / "libraries.pth").write_text(f"{libraries}\n")
        for name in ("phyai-core", "phyai-backend-reference"):
            made.publish(ROOT / name)
        return made

    def publish(self, source: Path) -> None:
        """Build a wheel of the distribution in ``source``, and install it."""
        wheels = self.folder / "wheels" / source.name
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", wheels, source, cwd=self.folder)
        self.pip("install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check", *wheels.glob("*.whl"))

    def pip(self, *arguments: str | Path) -> str:
        target = self.folder / "venv" / "bin" / "python"
        return run(sys.executable, "-m", "pip", "--python", target, *arguments, cwd=self.folder)

    def python(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        return run(self.folder / "venv" / "bin" / "python", *arguments, cwd=cwd or self.folder)

    def phyai(self, *arguments: str | Path) -> str:
        return run(self.folder / "venv" / "bin" / "phyai", *arguments, cwd=self.folder)

    def asked(self, *arguments: str | Path) -> Any:
        """What a sub-command says as JSON."""
        return json.loads(self.phyai(*arguments, "--json"))


def run(*command: str | Path, cwd: Path) -> str:
    """A command's output; its environment has nothing of this process's Python or PhyAI."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PHYAI", "PYTEST"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**env, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
