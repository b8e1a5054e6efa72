"""`phyai policy`: checking a file, and showing what is in force."""

from __future__ import annotations

import pytest
from cli_world import ONE_RULE, TYPO
from phyai.cli import Exit


def test_policy_check_of_a_good_file(phyai, policy_file):
    path = policy_file(ONE_RULE)
    result = phyai("policy", "check", path)
    assert (result.status, result.out) == (Exit.OK, f"{path}: ok\n")


def test_policy_check_reports_line_column_and_suggestion_of_every_file(phyai, policy_file):
    good, bad = policy_file(ONE_RULE, "good.yaml"), policy_file(TYPO, "bad.yaml")
    result = phyai("policy", "check", good, bad)
    assert result.status == Exit.REFUSED
    assert f"{bad}:5:5:" in result.out
    assert "did you mean `prefer`?" in result.out
    assert f"{good}: ok" in result.out
    data = phyai("policy", "check", good, bad, "--json").data
    assert [entry["ok"] for entry in data] == [True, False]
    assert (data[1]["errors"][0]["line"], data[1]["errors"][0]["got"]) == (5, "preferr")


def test_policy_check_strict_fails_on_warnings(phyai, policy_file):
    path = policy_file(ONE_RULE.replace("fast.gemm", "nobody.gemm"))
    assert phyai("policy", "check", path).status == Exit.OK
    result = phyai("policy", "check", path, "--strict")
    assert result.status == Exit.REFUSED
    assert "[warning]" in result.out


def test_policy_check_shows_the_warnings_of_a_file_that_has_errors_too(phyai, policy_file):
    path = policy_file("rules:\n- {match: {op: gemm}, prefer: [torch.gemm.nonsense]}\n- {match: {op: gemn}}\n")
    result = phyai("policy", "check", path)
    assert result.status == Exit.REFUSED
    assert "gemn" in result.out
    assert "no schema; read as phyai.kernel/v1 (add `schema: phyai.kernel/v1`) [warning]" in result.out
    (row,) = phyai("policy", "check", path, "--json").data
    assert not row["ok"]
    assert {problem["line"] for problem in row["errors"]} == {3}
    assert [problem["line"] for problem in row["warnings"]] == [1, 2]


def test_policy_check_of_a_file_that_is_not_there(phyai, tmp_path):
    result = phyai("policy", "check", str(tmp_path / "none.yaml"))
    assert result.status == Exit.REFUSED
    assert "none.yaml" in result.out


@pytest.mark.parametrize("argv", [("policy", "--json", "show"), ("policy", "show", "--json")])
def test_json_may_stand_before_or_after_the_action(phyai, argv):
    assert phyai(*argv).data["profile"] == "static"


def test_policy_show_takes_file_and_profile_from_the_environment(phyai, policy_file):
    env = {"PHYAI_KERNEL_CONFIG": policy_file(ONE_RULE), "PHYAI_KERNEL_PROFILE": "autotune"}
    data = phyai("policy", "show", "--json", env=env).data
    assert data["source"] == env["PHYAI_KERNEL_CONFIG"]
    assert data["profile"] == "autotune"
    (rule,) = [rule for rule in data["rules"] if rule["layer"] == "user"]
    assert (rule["id"], rule["prefer"], rule["line"]) == ("quick", ["fast.gemm"], 3)
    assert "quick" in phyai("policy", "show", env=env).out


def test_an_argument_beats_the_variable(phyai, policy_file):
    path = policy_file(ONE_RULE)
    data = phyai("policy", "show", path, "--json", env={"PHYAI_KERNEL_CONFIG": "/nowhere.yaml"}).data
    assert data["source"] == path
