"""What arguments and variables say of the policy: an argument wins, and one setting never drops another."""

from __future__ import annotations

import pytest
from phyai.errors import PolicyError
from phyai.policy import default_policy, policy_from_environment
from policy_catalogs import small_catalog

ONE = """\
schema: v1
profile: static
defaults: {fallback: error}
quantization: {method: rtn, rules: [{match: {glob: "*_proj"}, scheme: {weight: {dtype: int8}}}]}
rules: [{id: one, match: {op: gemm}, prefer: "torch.*"}]
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "one.yaml").write_text(ONE)
    (tmp_path / "two.yaml").write_text("schema: v1\nprofile: autotune\nrules: []\n")
    return tmp_path


def policy(environ, path=None, profile=None):
    return policy_from_environment(environ, path, profile, catalog=small_catalog()).policy


def test_nothing_said_is_the_shipped_policy():
    assert policy({}) == default_policy()


def test_an_empty_variable_says_nothing():
    assert policy({"PHYAI_KERNEL_CONFIG": "", "PHYAI_KERNEL_PROFILE": ""}) == default_policy()


def test_the_variable_names_the_file(files):
    assert [r.id for r in policy({"PHYAI_KERNEL_CONFIG": str(files / "one.yaml")}).rules] == ["one"]


def test_an_explicit_file_beats_the_variable(files):
    found = policy({"PHYAI_KERNEL_CONFIG": str(files / "one.yaml")}, files / "two.yaml")
    assert found.profile == "autotune"
    assert found.rules == ()


@pytest.mark.parametrize("how", ["variable", "argument"])
def test_a_profile_keeps_rules_defaults_and_quantization(files, how):
    plain = policy({}, files / "one.yaml")
    if how == "variable":
        found = policy({"PHYAI_KERNEL_PROFILE": "autotune"}, files / "one.yaml")
    else:
        found = policy({}, files / "one.yaml", "autotune")
    assert found.profile == "autotune"
    assert found.quantization["rules"][0]["scheme"] == {"weight": {"dtype": "int8"}}
    assert found == plain.with_profile("autotune")


def test_an_explicit_profile_beats_the_variable(files):
    assert policy({"PHYAI_KERNEL_PROFILE": "autotune"}, files / "one.yaml", "static").profile == "static"


def test_a_file_that_the_variable_names_must_exist(tmp_path):
    with pytest.raises(PolicyError, match="cannot be read"):
        policy({"PHYAI_KERNEL_CONFIG": str(tmp_path / "gone.yaml")})


def test_an_unknown_profile_names_where_it_was_said():
    with pytest.raises(PolicyError, match="PHYAI_KERNEL_PROFILE='autotun': no such profile; did you mean `autotune`"):
        policy({"PHYAI_KERNEL_PROFILE": "autotun"})
