"""The resolver: which kernels may run a call, and what a decision carries."""

from __future__ import annotations

import pytest
from fake_calls import REPRODUCIBLE, facts, kernel, rule
from phyai.decision import Stage
from phyai.errors import DeclarationError
from phyai.kernel import Capture, Numerics, Param
from phyai.policy import NumericsDemand
from resolver_cases import OPT, SLOPPY, decide, refused, verdict

# Eligibility


def test_a_kernel_that_cannot_is_out_with_the_reason_in_words():
    d = decide([kernel("a.gemm", {"shape.K": "%128"}), kernel("b.gemm")])
    lost = verdict(d, "a.gemm")
    assert (lost.stage, lost.reason) == (Stage.CAPABILITY, "shape.K=64 is not a multiple of 128")
    assert d.kernel.id == "b.gemm"


def test_a_weight_in_another_layout_is_not_read():
    d = decide([kernel("a.gemm"), kernel("h.gemm", layouts=("humming",))], call=facts(quant__layout="humming"))
    lost = verdict(d, "a.gemm")
    assert (lost.stage, lost.reason) == (Stage.LAYOUT, "the weight lies as humming, this kernel reads plain")
    assert d.kernel.id == "h.gemm"


def test_without_a_layout_fact_the_weight_lies_plain():
    d = decide([kernel("a.gemm"), kernel("h.gemm", layouts=("humming",))])
    assert verdict(d, "h.gemm").reason == "the weight lies as plain, this kernel reads humming"


def test_a_kernel_that_cannot_be_captured_is_out_where_the_site_will_be():
    kernels = [kernel("a.gemm", band=OPT, capture=Capture.NEVER), kernel("b.gemm")]
    assert decide(kernels, call=facts(mode__capture=True)).kernel.id == "b.gemm"
    assert verdict(decide(kernels, call=facts(mode__capture=True)), "a.gemm").stage is Stage.CAPTURE
    assert decide(kernels, call=facts(mode__capture=False)).kernel.id == "a.gemm"


def test_a_kernel_that_wants_a_warm_up_may_be_captured():
    kernels = [kernel("a.gemm", capture=Capture.AFTER_WARMUP)]
    assert decide(kernels, call=facts(mode__capture=True)).kernel.id == "a.gemm"


def test_default_numerics_rule_kernels_out():
    d = decide([kernel("a.gemm", band=OPT, numerics=SLOPPY), kernel("b.gemm")], numerics=REPRODUCIBLE)
    lost = verdict(d, "a.gemm")
    assert (lost.stage, lost.reason) == (
        Stage.NUMERICS, "not bitwise reproducible, which defaults.numerics asks for",
    )  # fmt: skip


def test_a_rule_asks_for_numerics_and_is_named():
    demand = NumericsDemand(batch_invariant=True)
    kernels = [kernel("a.gemm", band=OPT), kernel("b.gemm", numerics=Numerics(True, batch_invariant=True))]
    d = decide(kernels, [rule("rl", {"op": "gemm"}, numerics=demand, line=9)])
    assert d.kernel.id == "b.gemm"
    assert verdict(d, "a.gemm").reason == "not batch invariant, which rule rl (policy.yaml:9) asks for"


def test_a_rule_that_asks_for_any_numerics_beats_the_default():
    kernels = [kernel("a.gemm", band=OPT, numerics=SLOPPY), kernel("b.gemm")]
    d = decide(kernels, [rule("fast", {"op": "gemm"}, numerics=NumericsDemand())], numerics=REPRODUCIBLE)
    assert d.kernel.id == "a.gemm"


def test_a_failed_prepare_is_a_reason_like_any_other():
    d = decide(
        [kernel("a.gemm", band=OPT), kernel("b.gemm")], failed={"a.gemm": "prepare failed: ImportError: no fast"}
    )
    assert d.kernel.id == "b.gemm"
    assert verdict(d, "a.gemm").stage is Stage.PREPARE
    assert verdict(d, "a.gemm").reason == "prepare failed: ImportError: no fast"
    assert d.warnings == ("a.gemm: prepare failed: ImportError: no fast",)


# Parameters, and what else a decision carries


def test_params_of_a_rule_go_to_the_kernel_over_its_defaults():
    a = kernel("a.gemm", params=(Param("tile", "", default=64), Param("split", "", default=1)))
    d = decide([a], [rule("r", {"op": "gemm"}, params={"tile": 128})])
    assert dict(d.params) == {"tile": 128, "split": 1}


def test_a_parameter_that_the_kernel_does_not_have_is_said():
    d = decide([kernel("a.gemm")], [rule("r", {"op": "gemm"}, params={"tile": 128}, line=3)])
    assert dict(d.params) == {}
    assert d.warnings == (
        "a.gemm has no parameter 'tile', which rule r (policy.yaml:3) gives; it has no effect",
    )  # fmt: skip


def test_matched_rules_are_listed_strongest_first():
    rules = [
        rule("low", {"op": "gemm"}, prefer=("a.*",)),
        rule("other", {"op": "act"}, prefer=("a.*",)),
        rule("high", {"shape.M": "<=64"}, params={}, fallback=("a.*",), priority=3),
    ]
    assert [r.id for r in decide([kernel("a.gemm")], rules).matched] == ["high", "low"]


def test_the_only_kernel_that_can_was_decided_by_capability():
    assert decide([kernel("a.gemm"), kernel("b.gemm", {"shape.K": "%128"})]).decided_by == "capability"


def test_no_kernel_at_all_says_what_to_look_at():
    assert "no installed backend has a kernel of this op; `phyai backends`" in str(refused([kernel("a.act")]))
    assert "no backend is installed: install phyai-backend-reference" in str(refused([]))


def test_an_unknown_op_is_refused_with_a_suggestion():
    with pytest.raises(DeclarationError, match="gemm"):
        decide([kernel("a.gemm")], call=facts(op="gem"))


def test_an_alias_of_the_op_resolves():
    assert decide([kernel("a.gemm", {"op": "gemm"})], call=facts(op="linear")).kernel.id == "a.gemm"


def test_facts_of_the_call_beat_the_environment():
    call = facts(device__type="cuda", device__arch="sm120")
    assert decide([kernel("a.gemm", {"device.arch": ">=sm100"})], call=call).kernel.id == "a.gemm"
