"""Decisions: a verdict without a reason cannot be made, and everything can be written as JSON."""

from __future__ import annotations

import json

import pytest
from fake_calls import kernel
from phyai.decision import Accepted, Decision, Rejected, RuleRef, Stage
from phyai.errors import DeclarationError
from phyai.facts import Facts


@pytest.mark.parametrize("reason", ["", "  ", "unknown", "Unknown", "None", "?"])
def test_a_rejection_needs_a_reason(reason):
    with pytest.raises(DeclarationError, match=r"a\.gemm"):
        Rejected("a.gemm", Stage.CAPABILITY, reason)


@pytest.mark.parametrize("reason", ["", "unknown"])
def test_an_acceptance_needs_a_reason(reason):
    with pytest.raises(DeclarationError, match=r"a\.gemm"):
        Accepted("a.gemm", 0, reason)


def test_a_rule_is_shown_with_file_and_line():
    assert str(RuleRef("small-m", "policy.yaml", 7)) == "small-m (policy.yaml:7)"


def test_a_rule_without_a_file_is_shown_with_its_layer():
    assert str(RuleRef("measured", layer="tuning")) == "measured (tuning)"


def test_json_holds_the_whole_decision():
    rule = RuleRef("r", "policy.yaml", 3)
    part = Decision("act", Facts({"op": "act"}), None, tuple, "capability", failure="no kernel is installed")
    decision = Decision(
        op="gemm",
        facts=Facts({"op": "gemm", "model.tags": frozenset({"b", "a"})}),
        kernel=kernel("a.gemm"),
        diagnosis=lambda: (Accepted("a.gemm", 0, "band general", rule), Rejected("b.gemm", Stage.LAYOUT, "packed")),
        decided_by="bands",
        params={"tile": 64},
        matched=(rule,),
        assumptions=("K=64",),
        warnings=("careful",),
        parts={"act": part},
    )
    data = json.loads(json.dumps(decision.to_json()))
    assert data["chosen"] == "a.gemm"
    assert data["why"] == "band general"
    assert data["facts"] == {"model.tags": ["a", "b"], "op": "gemm"}
    assert data["params"] == {"tile": 64}
    assert data["matched"] == [{"id": "r", "file": "policy.yaml", "line": 3, "layer": "user", "priority": 0}]
    assert [c["verdict"] for c in data["candidates"]] == ["accepted", "rejected"]
    assert data["candidates"][1]["stage"] == "layout"
    assert data["parts"]["act"]["why"] == "no kernel is installed"
    assert (data["assumptions"], data["warnings"], data["decided_by"]) == (["K=64"], ["careful"], "bands")


def test_a_long_reason_is_shortened_to_the_phrases_that_fit():
    long = Rejected("a.gemm", Stage.CAPABILITY, "; ".join(f"shape.K={i} is not a multiple of 128" for i in range(9)))
    assert long.brief.count("multiple") == 3
    assert long.brief.endswith("; and 6 more")
    assert Rejected("a.gemm", Stage.CAPABILITY, "shape.K=1 is odd").brief == "shape.K=1 is odd"
    advice = f"{'fusing would bypass a rule ' * 5}; another rule would allow it"
    assert Rejected("a.mlp", Stage.PARTS, advice).brief == advice
