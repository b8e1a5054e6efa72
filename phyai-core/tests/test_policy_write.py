"""Writing: a policy reads back as it was, and a person's file keeps everything but the section that is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.errors import PolicyError
from phyai.policy import Layer, Policy, Rule, default_policy, load_policy, parse_policy, update_rules
from phyai.predicates import match
from policy_catalogs import small_catalog
from ruamel.yaml import YAML

CASES = Path(__file__).parent / "data" / "policies"
CATALOG = small_catalog()
BF16 = Rule("m8", match({"op": "gemm", "shape.M": "1..8"}), prefer=("torch.gemm.bf16",), params={"algorithm": "b"})
PLAIN = Rule("m64", match({"op": "gemm", "shape.M": "9..64"}), 3, prefer=("reference.gemm",))


def write(path, *rules):
    update_rules(path, rules, catalog=CATALOG)
    return path.read_text()


@pytest.mark.parametrize("name", ["earlier_grammar", "no_conflict"])
def test_a_policy_reads_back_as_it_was(name):
    policy = load_policy(CASES / f"{name}.yaml", catalog=CATALOG).policy
    again = parse_policy(policy.to_yaml(), catalog=CATALOG).policy
    assert again.rules == policy.rules
    assert (again.defaults, again.profile, again.quantization) == (policy.defaults, policy.profile, policy.quantization)


_SAID = st.fixed_dictionaries(
    {
        "numerics": st.sampled_from(
            ["any", "reproducible", ["reproducible", "batch_invariant"], {"accumulation": "fp32"}]
        )
    },
    optional={
        "priority": st.integers(-5, 5),
        "match": st.sampled_from(
            [{"op": "gemm"}, {"shape.K": "%16", "none_of": [{"role": "a"}]}, {"layer": "*.q", "role": None}]
        ),
        "fallback": st.sampled_from(["reference.*", ["torch.gemm.bf16", "reference.gemm"]]),
        "restrict_to": st.sampled_from([["torch.*"], "torch.gemm.bf16"]),
        "params": st.sampled_from(
            [{"split_k": 4}, {"split_k": "null"}, {"algorithm": "a", "split_k": [1, None, True]}]
        ),
    },
)


@settings(max_examples=60, deadline=None)
@given(_SAID)
def test_any_rule_reads_back_as_it_was(said):
    import json

    text = f"schema: v1\nrules:\n  - {json.dumps({'id': 'a', **said})}\n"
    policy = parse_policy(text, catalog=CATALOG, base=Policy()).policy
    assert parse_policy(policy.to_yaml(), catalog=CATALOG, base=Policy()).policy.rules == policy.rules


@pytest.mark.parametrize("said", ["", "defaults: {ties: [mine], fallback: error}", "defaults: {ties: [torch, mine]}"])
def test_what_the_policy_below_says_is_not_written(said):
    text = f"schema: phyai.kernel/v1\n{said}"
    policy = parse_policy(text, catalog=CATALOG).policy
    written = policy.to_yaml(base=default_policy())
    assert YAML(typ="safe").load(written) == YAML(typ="safe").load(text)


FILE = """\
# Ours, by hand.
schema: v1        # the earlier spelling
rules:
- id: hand        # kept
  match: {op: gemm,   role: "expert"}
  prefer: 'torch.*'

# What follows is about overrides.
overrides:
- {id: o, match: {op: rope}, use: reference.rope}
# the end"""


def test_rules_join_a_file_whose_every_other_line_stays(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    text = write(path, BF16, PLAIN)
    section = [line for line in text.split("\n") if line not in FILE.split("\n")]
    assert section == [
        "# >>> tuned: written by PhyAI; the next run replaces what stands between these two lines",
        "- id: tuned/m8",
        "  priority: -1000",
        "  match: {op: gemm, shape.M: '>=1,<=8'}",
        "  prefer: [torch.gemm.bf16]",
        "  params: {algorithm: b}",
        "- id: tuned/m64",
        "  priority: -997",
        "  match: {op: gemm, shape.M: '>=9,<=64'}",
        "  prefer: [reference.gemm]",
        "# <<< tuned",
    ]
    assert [line for line in text.split("\n") if line in FILE.split("\n")] == FILE.split("\n")


def test_a_later_run_replaces_the_section_and_an_empty_one_removes_it(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    first = write(path, BF16)
    assert write(path, BF16) == first
    assert "tuned/m64" in write(path, PLAIN)
    assert write(path) == FILE


def test_a_persons_rules_win_over_written_ones(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    write(path, BF16)
    policy = load_policy(path, catalog=CATALOG).policy
    assert policy.aspects({"op": "gemm", "role": "expert", "shape.M": 4}).prefer[0].id == "hand"
    assert policy.aspects({"op": "gemm", "role": "vision", "shape.M": 4}).prefer[0].id == "tuned/m8"


@pytest.mark.parametrize(
    "before",
    [
        "schema: v1\nrules: []  # none yet\nprofile: static\n",
        "schema: v1\nrules:\nprofile: static\n",
        "schema: v1\n",
        None,
    ],
)
def test_a_file_without_rules_gets_some(tmp_path, before):
    path = tmp_path / "p.yaml"
    if before is not None:
        path.write_text(before)
    text = write(path, BF16)
    assert load_policy(path, catalog=CATALOG).policy.rules[0].id == "tuned/m8"
    assert before is None or ("# none yet" in text) == ("# none yet" in before)


def test_rules_in_brackets_become_a_list_with_comments_kept(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(
        "schema: v1 # c1\n# c2\nrules: [{id: a, match: {op: rope}, numerics: any}] # c3\nprofile: static # c4\n"
    )
    text = write(path, BF16)
    assert [r.id for r in load_policy(path, catalog=CATALOG).policy.rules] == ["a", "tuned/m8"]
    assert all(comment in text for comment in ("# c1", "# c2", "# c3", "# c4"))


def test_line_ends_of_another_system_stay(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_bytes(FILE.replace("\n", "\r\n").encode())
    update_rules(path, [BF16], catalog=CATALOG)
    data = path.read_bytes()
    assert b"tuned/m8\r\n" in data
    assert data.count(b"\n") == data.count(b"\r\n")


def test_a_file_that_is_refused_is_left_as_it_was(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("schema: v1\nrules: [{nope: 1}]\n")
    with pytest.raises(PolicyError, match="unknown key"):
        update_rules(path, [BF16], catalog=CATALOG)
    assert path.read_text() == "schema: v1\nrules: [{nope: 1}]\n"
    assert os.listdir(tmp_path) == ["p.yaml"]


def test_rules_that_would_conflict_are_not_written(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    other = Rule("other", BF16.match, prefer=("reference.gemm",))
    with pytest.raises(PolicyError, match=r"is left as it was(.|\n)*rule `tuned/other` conflicts with rule `tuned/m8`"):
        update_rules(path, [BF16, other], catalog=CATALOG)
    assert path.read_text() == FILE


@pytest.mark.parametrize("text", ["{schema: v1, rules: []}\n", "schema: v1\n...\n"])
def test_a_form_of_file_that_cannot_take_rules_is_left_as_it_was(tmp_path, text):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError, match="is left as it was"):
        update_rules(path, [BF16], catalog=CATALOG)
    assert path.read_text() == text


def test_the_file_keeps_its_mode_and_a_link_stays_a_link(tmp_path):
    path, link = tmp_path / "p.yaml", tmp_path / "link.yaml"
    path.write_text(FILE)
    path.chmod(0o640)
    link.symlink_to(path)
    update_rules(link, [BF16], catalog=CATALOG)
    assert link.is_symlink()
    assert "tuned/m8" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_crash_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "p.yaml"
    path.write_text(FILE)

    def crash(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="disk full"):
        update_rules(path, [BF16], catalog=CATALOG)
    assert path.read_text() == FILE
    assert os.listdir(tmp_path) == ["p.yaml"]


def test_layers_can_be_chosen():
    policy = Policy(rules=(PLAIN,)).with_rules([BF16], Layer.TUNING)
    assert "m8" not in policy.to_yaml([Layer.USER])
    assert "m8" in policy.to_yaml()
