"""A stranger publishes a backend: it is written, built, installed beside phyai-core in a fresh environment, and tested.

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

import pytest

for needed in ("torch", "hypothesis", "build", "hatchling", "pip"):
    pytest.importorskip(needed, reason=f"{needed} builds, installs or tests a distribution")

ROOT = Path(__file__).parent.parent
OURS = ("phyai", "__editable__", "_phyai")
POLICY = """\
schema: phyai.kernel/v1
rules:
  - id: try-it
    match: {op: rms_norm}
    prefer: ["sparkle.*"]
"""


def run(*command: str | Path, cwd: Path, status: int = 0) -> str:
    """A command's output; its environment has nothing of this process's Python or PhyAI."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PHYAI", "PYTEST"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**env, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def venv(tmp_path_factory) -> Path:
    """A fresh environment with phyai-core and the reference backend, from their wheels."""
    folder = tmp_path_factory.mktemp("published")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    wheels = folder / "wheels"
    for distribution in ("phyai-core", "phyai-backend-reference"):
        build(ROOT / distribution, wheels)
    site = Path(run(python(folder), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    libraries = folder / "libraries"
    libraries.mkdir()
    for base in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(base).iterdir():
            if not entry.name.lower().startswith(OURS) and entry.suffix != ".pth":
                (libraries / entry.name).symlink_to(entry)
    (site / "libraries.pth").write_text(f"{libraries}\n")
    install(folder, *wheels.glob("*.whl"))
    return folder


def python(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


def phyai(folder: Path) -> Path:
    return folder / "venv" / "bin" / "phyai"


def build(source: Path, wheels: Path) -> None:
    """A wheel, built from a copy of the source distribution, as an index would get it."""
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", wheels, source, cwd=wheels.parent)


def install(folder: Path, *wheels: Path) -> None:
    run(
        sys.executable, "-m", "pip", "--python", python(folder), "install", "-q", "--no-deps", "--no-index",
        "--disable-pip-version-check", *wheels, cwd=folder,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sparkle(venv) -> Path:
    """The environment with a new backend in it, written, built and installed by the command."""
    run(phyai(venv), "new-backend", "sparkle", "--license", "MIT", "--author", "Ada Lovelace", cwd=venv)
    build(venv / "phyai-backend-sparkle", venv / "wheels")
    install(venv, *(venv / "wheels").glob("phyai_backend_sparkle-*.whl"))
    return venv


def test_the_environment_has_phyai_from_its_wheels_only(venv):
    code = "import phyai, phyai_backend_reference as r; print(phyai.__file__, r.__file__)"
    for file in run(python(venv), "-c", code, cwd=venv).split():
        assert str(venv) in file
    plugins = json.loads(run(phyai(venv), "backends", "--json", cwd=venv))["plugins"]
    assert [(row["name"], row["state"]) for row in plugins] == [("reference", "ready")]


def test_a_new_backend_shows_in_the_list_ready(sparkle):
    rows = json.loads(run(phyai(sparkle), "backends", "--json", "--check", cwd=sparkle))["plugins"]
    row = next(row for row in rows if row["name"] == "sparkle")
    assert (row["distribution"], row["version"], row["state"]) == ("phyai-backend-sparkle", "0.1.0", "ready")
    assert row["provides"] == {"kernels": 2, "quant_formats": 1}


def test_its_kernel_wins_where_a_policy_prefers_it_and_nowhere_else(sparkle):
    (sparkle / "policy.yaml").write_text(POLICY)
    question = (
        phyai(sparkle),
        *["explain", "--op", "rms_norm", "--device", "cpu", "-d", "bf16", "-a", "offset=0", "--json"],
    )
    by_itself = json.loads(run(*question, cwd=sparkle))
    preferred = json.loads(run(*question, "--policy", "policy.yaml", cwd=sparkle))
    assert by_itself["chosen"] == "torch.rms_norm"
    assert preferred["chosen"] == "sparkle.rms_norm"
    assert "try-it" in preferred["why"]


def test_a_new_backend_passes_the_kit_at_once(sparkle):
    report = json.loads(
        run(phyai(sparkle), "conformance", "sparkle", "--device", "cpu", "--seconds", "12", "--json", cwd=sparkle)
    )
    assert report["passed"]
    found = {subject["name"]: subject for subject in report["subjects"]}
    assert set(found) == {
        "sparkle (phyai-backend-sparkle)", "sparkle.int4_columns", "sparkle.rms_norm", "sparkle.gemm.int4",
    }  # fmt: skip
    assert all(subject["outcome"] == "passed" and subject["calls"] for subject in found.values())


def test_its_own_tests_pass(sparkle):
    run(python(sparkle), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=sparkle / "phyai-backend-sparkle")


def test_uninstalling_it_leaves_the_others_ready(sparkle):
    run(
        sys.executable, "-m", "pip", "--python", python(sparkle), "uninstall", "-q", "-y", "phyai-backend-sparkle",
        cwd=sparkle,
    )  # fmt: skip
    plugins = json.loads(run(phyai(sparkle), "backends", "--json", "--check", cwd=sparkle))["plugins"]
    assert [row["name"] for row in plugins] == ["reference"]
