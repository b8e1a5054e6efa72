"""The project's sessions: ``python3 -m nox -l`` lists them.

``demo`` and ``tests`` are what a new user runs; the others check one thing each. Sessions that need a GPU skip with the
reason where there is none.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "venv"

ROOT = Path(__file__).parent
CONSTRAINTS = str(ROOT / "constraints.txt")
CORE, REFERENCE, MODELS = "phyai-core", "phyai-backend-reference", "phyai-models"
GPU_BACKENDS = ("phyai-backend-cuda", "phyai-backend-flashinfer", "phyai-backend-humming")
CPU = (CORE, REFERENCE, MODELS)
TEST_TOOLS = (
    "pytest>=8", "pytest-timeout", "pytest-xdist>=3.6", "hypothesis>=6.100", "build>=1.2", "hatchling>=1.27",
    "editables",
)  # fmt: skip
#: Libraries of backends whose configuration and code generation are tested without a GPU; their tests skip where one
#: cannot be installed. Triton's kernels run in its interpreter; that of 3.9 makes numbers of combined masks.
OPTIONAL_LIBRARIES = ("triton==3.6.0", "humming-kernels>=0.1.20,<0.2")
QUANTIZERS = ("compressed-tensors>=0.20", "nvidia-modelopt>=0.40", "transformers>=5", "pulp", "requests")
DEMO_TOOLS = ("matplotlib>=3.8", "scikit-image>=0.24")


def install(session: nox.Session, *distributions: str, tools: tuple[str, ...] = ()) -> None:
    """Install distributions from their folders, editable, under the project's constraints."""
    arguments: list[str] = []
    for name in distributions:
        arguments += ["-e", name]
    session.install("-q", "-c", CONSTRAINTS, *arguments, *tools)


def install_optional(session: nox.Session) -> None:
    """Install what tests can do without, where it can be had."""
    for library in OPTIONAL_LIBRARIES:
        session.run("python", "-m", "pip", "install", "-q", "-c", CONSTRAINTS, library, success_codes=[0, 1])


def require_gpu(session: nox.Session) -> None:
    if shutil.which("nvidia-smi") is None:
        session.skip("needs an NVIDIA GPU: nvidia-smi was not found on PATH")


@nox.session
def demo(session: nox.Session) -> None:
    """Run a small π0.5 on real photographs under two policies; print both decision tables and write a PNG."""
    install(session, *CPU, tools=DEMO_TOOLS)
    session.run("phyai", "demo", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Every test that runs without a GPU, over all distributions, with the doctests; two files at a time."""
    install(session, *CPU, *GPU_BACKENDS, tools=(*TEST_TOOLS, *DEMO_TOOLS))
    install_optional(session)
    session.env["OMP_NUM_THREADS"] = "2"
    everything = [f"{name}/tests" for name in (*CPU, *GPU_BACKENDS)] + ["tests"]
    chosen = session.posargs or ["-n", "2", "--dist", "loadfile", *everything]
    session.run("python", "-m", "pytest", "--timeout=600", *chosen)
    if not session.posargs:
        sources = [f"{name}/src" for name in CPU]
        session.run("python", "-m", "pytest", "-q", "--doctest-modules", *sources)


@nox.session
@nox.parametrize("distribution", [*CPU, *GPU_BACKENDS])
def unit(session: nox.Session, distribution: str) -> None:
    """The tests of one distribution, in an environment with only what it depends on."""
    own = {CORE: (CORE,), REFERENCE: (CORE, REFERENCE), MODELS: CPU}
    needs = own.get(distribution, (CORE, REFERENCE, distribution))
    install(session, *needs, tools=TEST_TOOLS)
    if distribution == "phyai-backend-humming":
        install_optional(session)
    session.run("python", "-m", "pytest", f"{distribution}/tests", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """The tests marked ``gpu``."""
    require_gpu(session)
    install(session, *CPU, *GPU_BACKENDS, tools=TEST_TOOLS)
    targets = session.posargs or [f"{name}/tests" for name in (*CPU, *GPU_BACKENDS)]
    session.run("python", "-m", "pytest", "-m", "gpu", *targets)


@nox.session
def interop(session: nox.Session) -> None:
    """Exchange small quantized checkpoints with compressed-tensors and ModelOpt themselves."""
    install(session, *CPU, tools=("pytest>=8", "hypothesis>=6.100", *QUANTIZERS))
    session.run("python", "-m", "pytest", *(session.posargs or ["tests/interop"]))


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: style and formatting."""
    session.install("-q", "-c", CONSTRAINTS, "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict on the core."""
    install(session, *CPU, *GPU_BACKENDS, tools=("mypy", *TEST_TOOLS, *DEMO_TOOLS))
    session.run("mypy", "--strict", "--no-warn-unused-configs", "-p", "phyai")
    packages = [name.replace("-", "_") for name in (REFERENCE, MODELS, *GPU_BACKENDS)]
    session.run("mypy", *(argument for package in packages for argument in ("-p", package)))
