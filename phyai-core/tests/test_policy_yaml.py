"""Reading YAML: positions, the types of scalars, and every bound that keeps a hostile file harmless."""

from __future__ import annotations

import time

import pytest
from phyai.policy._yaml import MAX_BYTES, MAX_DEPTH, YamlProblem, read_yaml


def problem(text):
    with pytest.raises(YamlProblem) as caught:
        read_yaml(text, "p.yaml")
    found = caught.value.problem
    return found.location.line, found.location.column, str(found)


def test_nodes_know_their_line_and_column():
    root = read_yaml("a: 1\nb:\n  - x: [p, q]\n", "p.yaml")
    q = root.find(("b", 0, "x", 1))
    assert (q.value, q.line, q.column) == ("q", 3, 12)
    assert root.keys["b"] == (2, 1)


def test_a_path_that_leads_nowhere_ends_at_the_last_node_that_is_written():
    root = read_yaml("a: {b: 1}\n", "p.yaml")
    assert root.find(("a", "c", "d")) is root.value["a"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12), ("-3", -3), ("0o17", 15), ("0x1f", 31), ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5),
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
        ("yes", "yes"), ("on", "on"), ("012", 12), ("1_000", "1_000"), ("128x4", "128x4"), ("sm90", "sm90"),
        ("<=64", "<=64"), ("1e999", "1e999"), (".inf", ".inf"), ("2024-01-01", "2024-01-01"),
        ("'12'", "12"), ('"true"', "true"), ("9" * 50, "9" * 50),
    ],
)  # fmt: skip
def test_a_scalar_is_what_yaml_1_2_says(text, value):
    found = read_yaml(f"k: {text}\n", "p.yaml").value["k"].value
    assert found == value
    assert type(found) is type(value)


def test_a_byte_order_mark_is_no_part_of_the_text():
    assert read_yaml(b"\xef\xbb\xbfa: 1\n", "p.yaml").plain() == {"a": 1}


def test_anchors_aliases_and_merge_keys_stand_for_what_they_name():
    text = "base: &b {x: 1, y: [2]}\nc: *b\nd: {<<: *b, x: 3}\n"
    assert read_yaml(text, "p.yaml").plain()["d"] == {"x": 3, "y": [2]}
    assert read_yaml(text, "p.yaml").plain()["c"] == {"x": 1, "y": [2]}


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("a: 1\na: 2\n", 2, 1, "a key that is already there, in line 1 (got `a`"),
        ("a: !!python/object:os.system x\n", 1, 4, "tags are not allowed"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, 4, "tags are not allowed"),
        ("a: !mine {b: 1}\n", 1, 4, "tags are not allowed"),
        ("a: &x [*x]\n", 1, 8, "an alias that contains itself (got `*x`"),
        ("a: &x {b: {c: *x}}\n", 1, 15, "an alias that contains itself"),
        ("a: *x\n", 1, 4, "an alias without an anchor"),
        ("[a]: 1\n", 1, 1, "a key must be text"),
        ("a: {<<: 1}\n", 1, 5, "`<<` merges mappings only"),
        ("a: 1\n---\nb: 2\n", 3, 1, "a second document"),
        ("a: [1, 2\nb: 3\n", 2, 2, "not valid YAML"),
        ("a: 'open\n", 2, 1, "not valid YAML"),
        ("a:\n\tb: 1\n", 2, 1, "not valid YAML"),
        ("a: b: c\n", 1, 5, "not valid YAML"),
        ('a: "\\UFFFFFFFF"\n', 1, 1, "not valid YAML"),
        ("a: 1\nb: \x00\n", 2, 4, "a character that YAML does not allow (got `character U+0000`; remove it)"),
        ("a: \ud800\n", 1, 4, "a character that YAML does not allow"),
        (b"a: 1\nb: \xff\n", 2, 4, "the file is not UTF-8 (got `byte 0xff`"),
        ("a: 1\n".encode("utf-16"), 1, 1, "the file is not UTF-8"),
        ("k: " + "x" * 20_000, 1, 4, "a value of 20,000 characters"),
    ],
)
def test_what_a_policy_may_not_use_is_refused_with_its_place(text, line, column, says):
    found_line, found_column, message = problem(text)
    assert says in message
    assert (found_line, found_column) == (line, column)


@pytest.mark.parametrize("text", ["[" * 5000, "a: " + "{b: " * 5000, "- " * 5000 + "x", "? " * 5000])
def test_deep_nesting_is_refused_early(text):
    started = time.process_time()
    _, _, message = problem(text)
    assert "deep" in message or "not valid YAML" in message
    assert time.process_time() - started < 2


def test_nesting_up_to_the_bound_is_read():
    assert read_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH, "p.yaml").height == MAX_DEPTH


def test_aliases_count_as_what_they_expand_to():
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 9)]
    started = time.process_time()
    _, _, message = problem("\n".join(lines))
    assert "more than 100,000 values, aliases expanded" in message
    assert time.process_time() - started < 1


def test_depth_counts_through_aliases():
    lines = ["l0: &l0 [x]"] + [f"l{i}: &l{i} [*l{i - 1}]" for i in range(1, 80)]
    assert "deep, aliases expanded" in problem("\n".join(lines))[2]


def test_a_text_beyond_the_size_is_refused_before_it_is_parsed():
    started = time.process_time()
    _, _, message = problem("#" * (MAX_BYTES + 1))
    assert "4,194,305 bytes; a policy file may have 4,194,304" in message
    assert time.process_time() - started < 0.1
