"""A stranger publishes a backend: it is written, built, installed beside phyai-core in a fresh environment, tested."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

for needed in ("torch", "hypothesis", "build", "hatchling", "pip"):
    pytest.importorskip(needed, reason=f"{needed} builds, installs or tests a distribution")

sys.path.insert(0, str(Path(__file__).parent))
from publishing import ROOT, FreshEnvironment  # noqa: E402

POLICY = """\
schema: phyai.kernel/v1
rules:
  - id: try-it
    match: {op: rms_norm}
    prefer: ["sparkle.*"]
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory) -> FreshEnvironment:
    return FreshEnvironment.make(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def sparkle(fresh) -> FreshEnvironment:
    """The environment with a new backend in it, written, built and installed by the command."""
    fresh.phyai("new-backend", "sparkle", "--license", "MIT", "--author", "Ada Lovelace")
    fresh.publish(fresh.folder / "phyai-backend-sparkle")
    return fresh


def test_the_environment_has_phyai_from_its_wheels_only(fresh):
    files = fresh.python("-c", "import phyai, phyai_backend_reference as r; print(phyai.__file__, r.__file__)")
    assert all(file.startswith(str(fresh.folder)) for file in files.split())
    assert [(row["name"], row["state"]) for row in fresh.asked("backends")["plugins"]] == [("reference", "ready")]


def test_a_new_backend_shows_in_the_list_ready(sparkle):
    row = next(row for row in sparkle.asked("backends", "--check")["plugins"] if row["name"] == "sparkle")
    assert (row["distribution"], row["version"], row["state"]) == ("phyai-backend-sparkle", "0.1.0", "ready")
    assert row["provides"] == {"kernels": 2, "quant_formats": 1}


def test_its_kernel_wins_where_a_policy_prefers_it_and_nowhere_else(sparkle):
    (sparkle.folder / "policy.yaml").write_text(POLICY)
    question = ["explain", "--op", "rms_norm", "--device", "cpu", "-d", "bf16", "-a", "offset=0"]
    assert sparkle.asked(*question)["chosen"] == "torch.rms_norm"
    preferred = sparkle.asked(*question, "--policy", "policy.yaml")
    assert preferred["chosen"] == "sparkle.rms_norm"
    assert "try-it" in preferred["why"]


def test_what_its_readme_asks_for_is_shown(sparkle):
    readme = (sparkle.folder / "phyai-backend-sparkle" / "README.md").read_text()
    (sparkle.folder / "policy.yaml").write_text(re.search(r"```yaml\n(.*?)```", readme, re.S)[1])
    question = shlex.split(re.search(r"`phyai (explain .*?)`", readme)[1])
    assert sparkle.asked(*question)["chosen"] == "sparkle.rms_norm"


def test_a_new_backend_passes_the_kit_at_once(sparkle):
    report = sparkle.asked("conformance", "sparkle", "--device", "cpu", "--seconds", "8")
    assert report["passed"]
    found = {subject["name"]: subject for subject in report["subjects"]}
    assert set(found) == {
        "sparkle (phyai-backend-sparkle)", "sparkle.int4_columns", "sparkle.rms_norm", "sparkle.gemm.int4",
    }  # fmt: skip
    assert all(subject["outcome"] == "passed" and subject["calls"] for subject in found.values())


def test_its_own_tests_pass(sparkle):
    source = sparkle.folder / "phyai-backend-sparkle"
    sparkle.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=source)


def test_pytest_collects_a_test_for_every_kernel_and_check(sparkle):
    options = ("--phyai-backend", "sparkle", "--phyai-device", "cpu", "--collect-only", "-q")
    listed = sparkle.python(
        "-m", "pytest", "-p", "no:cacheprovider", *options, sparkle.folder / "phyai-backend-sparkle"
    )
    assert "sparkle.rms_norm::values" in listed
    assert "sparkle.int4_columns::packer" in listed


def test_an_example_of_a_backend_is_chosen_by_its_band_and_passes_the_kit(fresh):
    fresh.publish(ROOT / "examples" / "phyai-backend-example")
    try:
        decision = fresh.asked(
            *["explain", "--op", "gated_activation", "--device", "cpu", "-d", "fp32", "-s", "M=968", "-s", "I=16384"]
        )
        assert decision["chosen"] == "example.gated_activation.in_place"
        report = fresh.asked("conformance", "example", "--device", "cpu", "--seconds", "6")
        assert report["passed"], report
        tests = ROOT / "examples" / "phyai-backend-example" / "tests"
        fresh.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", tests)
        bench = fresh.python("-m", "phyai_backend_example.bench", "--rounds", "1", "--largest", "1000000")
        assert "pi05.expert" in bench
    finally:
        fresh.pip("uninstall", "-q", "-y", "phyai-backend-example")


def test_uninstalling_it_leaves_the_others_ready(sparkle):
    sparkle.pip("uninstall", "-q", "-y", "phyai-backend-sparkle")
    assert [row["name"] for row in sparkle.asked("backends", "--check")["plugins"]] == ["reference"]
