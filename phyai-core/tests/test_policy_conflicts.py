"""Conflicts: which rules contradict each other, held against comparing every pair, and the call that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.errors import PolicyError
from phyai.policy import load_policy, parse_policy
from phyai.policy._overlap import may_overlap
from phyai.predicates import Signature, intersect, match
from policy_catalogs import small_catalog

CASES = Path(__file__).parent / "data" / "policies"


def load(*lines, section="rules"):
    text = f"schema: v1\n{section}:\n" + "".join(f"  - {line}\n" for line in lines)
    return parse_policy(text, file="p.yaml", catalog=small_catalog())


def conflict(*lines, section="rules"):
    with pytest.raises(PolicyError) as caught:
        load(*lines, section=section)
    (problem,) = caught.value.problems
    return problem


def test_the_message_names_both_rules_their_places_and_a_call_that_both_match():
    path = CASES / "conflict.yaml"
    with pytest.raises(PolicyError) as caught:
        load_policy(path, catalog=small_catalog())
    (problem,) = caught.value.problems
    assert problem.location.line == 7
    assert f"rule `packed-linear` conflicts with rule `expert-on-cublas` ({path}:4)" in problem.message
    assert "match op=gemm, role=expert, quant.layout=humming" in problem.message
    assert "`restrict_to: torch.gemm.bf16` against `restrict_to: humming.gemm.w4a16`" in problem.message
    assert match({"op": "gemm", "role": "expert"}).holds(problem.witness)
    assert match({"op": "gemm", "quant.layout": "humming"}).holds(problem.witness)


GEMM = "match: {op: gemm}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("pin: torch.gemm.bf16", "pin: reference.gemm"),
        ("pin: torch.gemm.bf16", "restrict_to: torch.gemm.bf16"),  # one relaxes, the other never
        ("prefer: [torch.gemm.bf16, reference.gemm]", "prefer: [reference.gemm, torch.gemm.bf16]"),
        ("numerics: reproducible", "numerics: any"),
        ("fallback: reference.gemm", "fallback: torch.gemm.bf16"),
        ("params: {algorithm: a}", "params: {algorithm: b}"),
        ("pin: torch.gemm.bf16, params: {algorithm: a}", "params: {algorithm: b}"),
        ("pin: torch.gemm.bf16, params: {split_k: 1}", "pin: torch.gemm.bf16, params: {split_k: true}"),
    ],
)
def test_two_rules_conflict_that_say_different_things_about_one_aspect(first, second):
    problem = conflict(f"{{id: a, {GEMM}, {first}}}", f"{{id: b, {GEMM}, {second}}}")
    assert "rule `b` conflicts with rule `a` (p.yaml:3)" in problem.message
    assert problem.witness["op"] == "gemm"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("pin: torch.gemm.bf16", "prefer: reference.gemm"),  # another aspect
        ("restrict_to: ['torch.*', 'reference.*']", "restrict_to: ['reference.*', 'torch.*']"),  # the same set
        ("prefer: 'torch.*'", "prefer: ['torch.*']"),
        ("params: {algorithm: a}", "params: {split_k: 2}"),  # another parameter
        ("params: {algorithm: a}", "params: {algorithm: a}"),
        ("pin: torch.gemm.bf16, priority: 1", "pin: reference.gemm"),  # another priority
        # params of kernels that differ never meet
        ("prefer: torch.gemm.bf16, params: {algorithm: a}", "restrict_to: acme.gemm.x, params: {algorithm: b}"),
    ],
)
def test_two_rules_do_not_conflict(first, second):
    assert len(load(f"{{id: a, {GEMM}, {first}}}", f"{{id: b, {GEMM}, {second}}}").policy.rules) == 2


def test_overrides_conflict_among_themselves():
    assert conflict(
        f"{{id: a, {GEMM}, use: torch.gemm.bf16}}", f"{{id: b, {GEMM}, use: reference.gemm}}", section="overrides"
    )


def test_an_override_does_not_conflict_with_a_rule():
    rule = f"rules: [{{id: a, {GEMM}, pin: reference.gemm}}]"
    override = f"overrides: [{{id: b, {GEMM}, use: torch.gemm.bf16}}]"
    assert len(parse_policy(f"schema: v1\n{rule}\n{override}\n", catalog=small_catalog()).policy.rules) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("device.arch: sm90", "device.vendor: amd"),  # an sm90 is an NVIDIA GPU
        ("device.arch: '>=sm80'", "device.type: cpu"),
        ("op: gemm", "shape.head_dim: 64"),  # no gemm has heads
        ("shape.M: '<=64'", "shape.M: '>64'"),
        ("shape.D: '%16'", "none_of: [{shape.D: '%8'}]"),
        ("layer: 'a.*'", "layer: 'b.*'"),
        ("quant.layout: null", "quant.layout: humming"),
    ],
)
def test_matches_that_exclude_each_other_do_not_conflict(first, second):
    load(f"{{id: a, match: {{{first}}}, numerics: any}}", f"{{id: b, match: {{{second}}}, numerics: reproducible}}")


# The cheap filter, against the exact test

_VALUES = {
    "op": st.sampled_from(["gemm", "rms_norm", ["gemm", "rope"], "*norm*"]),
    "role": st.sampled_from(["expert", "vision", ["expert", "prefix"], "exp*", "*", None]),
    "shape.M": st.sampled_from([4, "<=8", ">8", "8..16", "%4", "!=4", [1, 4, 9], None]),
    "device.arch": st.sampled_from(["sm90", "<sm90", ">=sm90", ["sm80", "sm100"], "gfx942", None]),
    "model.tags": st.sampled_from(["a", ["a", "b"], None]),
    "lib.torch": st.sampled_from([">=2", "<2", None]),
    "attrs.causal": st.sampled_from([True, False, None]),
}
_FLAT = st.fixed_dictionaries({}, optional=_VALUES)
_MATCHES = st.one_of(
    _FLAT,
    st.builds(lambda flat, branches: {**flat, "any_of": branches}, _FLAT, st.lists(_FLAT, min_size=1, max_size=3)),
    st.builds(lambda flat, branches: {**flat, "none_of": branches}, _FLAT, st.lists(_FLAT, min_size=1, max_size=2)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_MATCHES, min_size=2, max_size=8))
def test_the_filter_keeps_every_pair_that_can_hold_together(matches):
    predicates = [match(m) for m in matches]
    masks = may_overlap(predicates)
    for i, p in enumerate(predicates):
        for j, q in enumerate(predicates):
            if intersect(p, q) is not None:
                assert masks[i] >> j & 1, (matches[i], matches[j])


_RULES = st.lists(
    st.tuples(
        st.fixed_dictionaries({}, optional={k: _VALUES[k] for k in ("op", "role", "shape.M", "device.arch")}),
        st.sampled_from([0, 1]),
        st.sampled_from(
            [("numerics", "any"), ("numerics", "reproducible"), ("prefer", ["torch.*"]), ("prefer", ["*.*"])]
        ),
    ),
    min_size=2,
    max_size=7,
)


@settings(max_examples=100, deadline=None)
@given(_RULES)
def test_the_conflicts_found_are_those_that_comparing_every_pair_finds(drawn):
    import json

    lines = [
        json.dumps({"id": f"r{i}", "match": m, "priority": priority, aspect: said})
        for i, (m, priority, (aspect, said)) in enumerate(drawn)
    ]
    try:
        load(*lines)
        found = set()
    except PolicyError as error:
        found = {(p.location.line - 3, p.message.split("`")[3]) for p in error.problems}
    signatures = {op.name: Signature.of(op) for op in small_catalog().ops}
    aliases = small_catalog().aliases
    vocabulary = small_catalog().vocabulary
    predicates = [match(m, vocabulary, ops=aliases) for m, _, _ in drawn]
    expected = {
        (j, f"r{i}")
        for j in range(len(drawn))
        for i in range(j)
        if drawn[i][1] == drawn[j][1]
        and drawn[i][2][0] == drawn[j][2][0]
        and drawn[i][2][1] != drawn[j][2][1]
        and intersect(predicates[i], predicates[j], vocabulary=vocabulary, signatures=signatures) is not None
    }
    assert found == expected


def test_a_thousand_rules_leave_few_pairs_to_compare():
    """What makes checking a large file fast, counted rather than timed."""
    ranges = [match({"op": "gemm", "shape.M": f"{10 * i}..{10 * i + 9}"}) for i in range(1000)]
    assert [mask.bit_count() for mask in may_overlap(ranges)] == [1] * 1000
    roles = [match({"op": ["gemm", "rope"], "role": f"r{i % 500}", "shape.K": 64 + i // 500}) for i in range(1000)]
    assert [mask.bit_count() for mask in may_overlap(roles)] == [1] * 1000
    layers = [match({"op": "gemm", "layer": f"model.layers.{i}.*"}) for i in range(1000)]
    assert [mask.bit_count() for mask in may_overlap(layers)] == [1] * 1000


def test_rules_that_overlap_beyond_counting_are_said_to_be_unchecked(monkeypatch):
    monkeypatch.setattr("phyai.policy._conflicts.MAX_COMPARISONS", 2)
    lines = [
        f"{{id: r{i}, match: {{op: gemm, shape.K: '%{p}', none_of: [{{shape.K: '%2'}}]}}, numerics: {n}}}"
        for i, (p, n) in enumerate([(4, "any"), (8, "reproducible"), (16, "batch_invariant")])
    ]
    assert any("not all pairs were compared" in w.message for w in load(*lines).warnings)


def test_the_call_that_both_match_is_one_that_somebody_makes():
    problem = conflict(
        "{id: a, match: {op: gemm, shape.M: '<=64', model.tags: ci}, prefer: torch.gemm.bf16}",
        "{id: b, match: {op: gemm, model.tags: debug}, prefer: reference.gemm}",
    )
    assert "model.tags={ci, debug}" in problem.message
    assert "shape.M=1" in problem.message
