"""The resolver: one behaviour a test, with kernels that compute nothing."""

from __future__ import annotations

import pytest
from fake_calls import CPU, GPU, OVERRIDE, REPRODUCIBLE, catalog, facts, kernel, policy, rule
from phyai.decision import Decision, Stage
from phyai.errors import AmbiguousKernelError, DeclarationError, NoKernelError
from phyai.kernel import Band, Capture, Numerics, Param
from phyai.policy import Layer, NumericsDemand, parse_policy
from phyai.predicates import match
from phyai.resolver import in_short, resolve

SLOPPY = Numerics(reproducible=False)
OPT, REF = Band.OPTIMIZED, Band.REFERENCE


def decide(kernels, rules=(), call=None, env=GPU, failed=None, **defaults) -> Decision:
    return resolve(call or facts(), catalog(*kernels), policy(*rules, **defaults), env, failed=failed or {})


def refused(kernels, rules=(), call=None, error=NoKernelError, **defaults):
    with pytest.raises(error) as caught:
        decide(kernels, rules, call, **defaults)
    return caught.value


def order(decision: Decision) -> list[str]:
    return [c.kernel for c in decision.accepted]


def verdict(decision: Decision, id: str):
    return next(c for c in decision.candidates if c.kernel == id)


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


# Ordering


def test_higher_bands_come_first():
    d = decide([kernel("a.gemm"), kernel("b.gemm", band=Band.SPECIALIZED), kernel("c.gemm", band=OPT)])
    assert order(d) == ["b.gemm", "c.gemm", "a.gemm"]
    assert d.decided_by == "bands"


RAISED = {OPT: match({"shape.M": "<=64"})}


def test_a_band_that_holds_on_some_calls_orders_those():
    kernels = [kernel("a.gemm", bands=RAISED), kernel("b.gemm")]
    few, many = (decide(kernels, call=facts(m), ties=("b", "a")) for m in (64, 65))
    assert (order(few), few.decided_by) == (["a.gemm", "b.gemm"], "bands")
    assert (order(many), many.decided_by) == (["b.gemm", "a.gemm"], "ties")


def test_the_best_of_several_bands_that_hold_counts():
    bands = {OPT: match({"shape.M": "<=64"}), Band.SPECIALIZED: match({"shape.M": 50})}
    kernels = [kernel("a.gemm", bands=bands), kernel("b.gemm", band=OPT)]
    assert order(decide(kernels, call=facts(50))) == ["a.gemm", "b.gemm"]
    assert order(decide(kernels, call=facts(51), ties=("b", "a"))) == ["b.gemm", "a.gemm"]
    assert decide(kernels, call=facts(65)).decided_by == "bands"


def test_a_decision_says_where_a_band_holds_and_why_it_does_not_here():
    kernels = [kernel("a.gemm", bands=RAISED)]
    assert decide(kernels, call=facts(50)).why() == "band optimized where shape.M is <= 64, rank 0 in a"
    assert decide(kernels, call=facts(65)).why() == "band general (not optimized: shape.M=65 is not <= 64), rank 0 in a"


def test_a_fact_that_is_not_known_raises_no_band():
    call = facts().replace({"shape.M": None})
    assert order(decide([kernel("a.gemm", bands=RAISED), kernel("b.gemm")], call=call, ties=("b", "a")))[0] == "b.gemm"


def test_a_tie_names_the_band_of_this_call():
    error = refused([kernel("a.gemm", bands=RAISED), kernel("b.gemm", band=OPT)], error=AmbiguousKernelError)
    assert "a.gemm and b.gemm tie (band optimized)" in str(error)


def test_a_kernel_above_the_reference_on_some_calls_is_a_reference_on_the_others():
    kernels = [kernel("a.gemm", band=REF, bands=RAISED), kernel("r.gemm", band=REF)]
    assert decide(kernels, call=facts(50), ties=("r", "a")).warnings == ()
    assert decide(kernels, call=facts(65), ties=("r", "a")).warnings == (
        "gemm: only r.gemm is left, although a serves this device",
    )


def test_rank_orders_one_backends_kernels():
    d = decide([kernel("a.gemm.x"), kernel("a.gemm.y", rank=2), kernel("a.gemm.z", rank=1)])
    assert order(d) == ["a.gemm.y", "a.gemm.z", "a.gemm.x"]
    assert d.decided_by == "ranks"


def test_rank_does_not_compare_backends():
    refused([kernel("a.gemm", rank=5), kernel("b.gemm", rank=1)], error=AmbiguousKernelError)


def test_prefer_puts_these_first_in_order_and_everyone_else_as_before():
    kernels = [kernel("a.gemm", band=OPT), kernel("b.gemm"), kernel("c.gemm", band=REF), kernel("d.gemm", band=REF)]
    d = decide(kernels, [rule("r", {"op": "gemm"}, prefer=("d.gemm", "c.*"))])
    assert order(d) == ["d.gemm", "c.gemm", "a.gemm", "b.gemm"]
    assert (d.decided_by, d.accepted[0].rule.id) == ("user", "r")


def test_prefer_falls_through_a_kernel_that_cannot():
    kernels = [kernel("a.gemm", band=OPT), kernel("b.gemm", {"shape.K": "%128"})]
    d = decide(kernels, [rule("r", {"op": "gemm"}, prefer=("b.gemm",))])
    assert d.kernel.id == "a.gemm"
    assert verdict(d, "b.gemm").reason == "shape.K=64 is not a multiple of 128"


def test_inside_one_glob_bands_and_ranks_order():
    kernels = [kernel("a.gemm.x"), kernel("a.gemm.y", band=OPT), kernel("b.gemm", band=Band.SPECIALIZED)]
    assert order(decide(kernels, [rule("r", {"op": "gemm"}, prefer=("a.*",))])) == ["a.gemm.y", "a.gemm.x", "b.gemm"]


def test_a_higher_layer_prefers_over_a_higher_priority_below():
    rules = [
        rule("tuned", {"op": "gemm"}, prefer=("a.gemm",), layer=Layer.TUNING, priority=99),
        rule("mine", {"op": "gemm"}, prefer=("b.gemm",)),
    ]
    d = decide([kernel("a.gemm"), kernel("b.gemm"), kernel("c.gemm", band=OPT)], rules)
    assert order(d) == ["b.gemm", "a.gemm", "c.gemm"]  # what the user leaves equal, tuning orders


def test_within_a_layer_the_higher_priority_prefers():
    rules = [
        rule("low", {"op": "gemm"}, prefer=("a.gemm",)),
        rule("high", {"op": "gemm"}, prefer=("b.gemm",), priority=1),
    ]
    assert decide([kernel("a.gemm"), kernel("b.gemm")], rules).kernel.id == "b.gemm"


# Restriction


def test_restrict_to_keeps_all_of_them_ordered_as_before():
    kernels = [kernel("a.gemm", band=OPT), kernel("t.gemm.x"), kernel("t.gemm.y", rank=1)]
    d = decide(kernels, [rule("r", {"op": "gemm"}, restrict_to=["t.gemm.*"], line=4)])
    assert order(d) == ["t.gemm.y", "t.gemm.x"]
    lost = verdict(d, "a.gemm")
    assert (lost.stage, lost.rule.line) == (Stage.RESTRICTION, 4)


def test_a_high_prefer_does_not_cancel_a_low_restriction():
    kernels = [kernel("a.gemm", band=OPT), kernel("b.gemm"), kernel("c.gemm", band=REF)]
    rules = [
        rule("only", {"op": "gemm"}, restrict_to=["b.gemm", "c.gemm"]),
        rule("first", {"op": "gemm"}, prefer=("a.gemm", "c.gemm"), priority=50),
    ]
    assert order(decide(kernels, rules)) == ["c.gemm", "b.gemm"]


def test_an_override_beats_a_rule_of_any_priority():
    rules = [
        rule("mine", {"op": "gemm"}, pin="a.gemm", priority=999),
        rule("over", {"op": "gemm"}, pin="b.gemm", layer=OVERRIDE),
    ]
    d = decide([kernel("a.gemm"), kernel("b.gemm")], rules)
    assert (d.kernel.id, d.decided_by) == ("b.gemm", "override")


def test_a_pin_is_checked_against_capability_and_never_replaced():
    error = refused(
        [kernel("a.gemm", {"shape.K": "%128"}), kernel("b.gemm")],
        [rule("p", {"op": "gemm"}, pin="a.gemm", line=12)],
        fallback="reference",
    )
    assert "rule p (policy.yaml:12) (pin: a.gemm) leaves no kernel" in str(error)
    assert "a.gemm: [capability] shape.K=64 is not a multiple of 128" in str(error)
    assert "b.gemm: [restriction]" in str(error)


def test_a_refusal_lists_the_kernels_that_the_rule_allows_first():
    kernels = [kernel("a.gemm", {"shape.K": 1}), kernel("b.gemm"), kernel("m.gemm", {"shape.K": "%128"})]
    error = refused(kernels, [rule("p", {"op": "gemm"}, restrict_to=["m.*"])])
    assert [line.split(":")[0].strip() for line in str(error).splitlines()[1:]] == ["m.gemm", "b.gemm", "a.gemm"]


@pytest.mark.parametrize(
    ("patterns", "reasons"),
    [
        (["a.gemm"], "(a.gemm: shape.K=64 is not a multiple of 128)"),
        (["?.gemm"], "(a.gemm: shape.K=64 is not a multiple of 128; c.gemm: shape.M=5 is not 1; and 1 more)"),
        (["z.*"], "call"),
    ],
)
def test_in_short_a_refusal_says_why_the_kernels_that_the_rule_allows_cannot_run_it(patterns, reasons):
    restricted = rule("p", {"op": "gemm"}, restrict_to=patterns, line=12)
    kernels = [
        kernel("a.gemm", {"shape.K": "%128"}),
        kernel("c.gemm", {"shape.M": 1}),
        kernel("d.gemm", {"shape.M": 2}),
    ]
    error = refused(kernels, [restricted])
    said = in_short(error, policy(restricted))
    assert said.startswith("gemm: rule p (policy.yaml:12) (restrict_to: ")
    assert said.endswith(f" {reasons}")
    assert "\n" not in said


def test_in_short_a_tie_is_what_it_says_first():
    among = rule("p", {"op": "gemm"}, restrict_to=["?.gemm"])
    error = refused([kernel("a.gemm"), kernel("b.gemm"), kernel("c.gemm", {"shape.K": 1})], [among])
    assert in_short(error, policy(among)) == str(error).splitlines()[0]
    assert "a.gemm and b.gemm tie" in str(error)


def test_a_pin_does_not_relax_to_its_fallback():
    pinned = rule("p", {"op": "gemm"}, pin="a.gemm", fallback=("b.gemm",))
    refused([kernel("a.gemm", {"shape.K": "%128"}), kernel("b.gemm")], [pinned])


def test_an_empty_restriction_is_an_error():
    refused([kernel("a.gemm")], [rule("r", {"op": "gemm"}, restrict_to=["z.*"])])


def test_an_empty_restriction_takes_the_rules_own_fallback_in_its_order():
    kernels = [kernel("a.gemm", band=OPT), kernel("b.gemm"), kernel("c.gemm", band=REF)]
    d = decide(kernels, [rule("r", {"op": "gemm"}, restrict_to=["z.*"], fallback=("c.gemm", "b.gemm"))])
    assert order(d) == ["c.gemm", "b.gemm"]
    assert d.decided_by == "user"
    assert "leaves nothing usable" in d.warnings[0]
    assert verdict(d, "a.gemm").stage is Stage.RESTRICTION


def test_a_restriction_that_holds_ignores_its_fallback():
    d = decide([kernel("a.gemm"), kernel("b.gemm", band=OPT)],
               [rule("r", {"op": "gemm"}, restrict_to=["a.*"], fallback=("b.gemm",))])  # fmt: skip
    assert order(d) == ["a.gemm"]
    assert d.warnings == ()


def test_defaults_fallback_reference_relaxes_a_restriction_and_says_so():
    kernels = [kernel("a.gemm", band=OPT), kernel("r.gemm", band=REF)]
    d = decide(kernels, [rule("r", {"op": "gemm"}, restrict_to=["z.*"])], fallback="reference")
    assert order(d) == ["r.gemm"]
    assert "relaxed to a reference kernel by defaults.fallback: reference" in d.warnings[0]
    assert d.decided_by == "defaults"


def test_a_restriction_is_relaxed_to_reference_kernels_not_to_others_of_their_band():
    kernels = [kernel("last.gemm", band=REF), kernel("reference.gemm", band=REF)]
    d = decide(kernels, [rule("r", {"op": "gemm"}, restrict_to=["z.*"])], fallback="reference", ties=("last",))
    assert order(d) == ["reference.gemm"]


# Ties


def test_a_tie_between_backends_prints_the_line_that_settles_it():
    kernels = [kernel("a.gemm"), kernel("b.gemm")]
    error = refused(kernels, call=facts(role="expert"), error=AmbiguousKernelError)
    line = str(error).splitlines()[-1]
    loaded = parse_policy(f"schema: phyai.kernel/v1\nrules:\n{line}\n", catalog=catalog(*kernels))
    assert resolve(facts(role="expert"), catalog(*kernels), loaded.policy, GPU).kernel.id == "a.gemm"


def test_ties_between_listed_backends_are_settled():
    kernels = [kernel("a.gemm"), kernel("b.gemm"), kernel("c.gemm", band=REF)]
    d = decide(kernels, ties=("b", "a"))
    assert (d.kernel.id, d.decided_by) == ("b.gemm", "ties")


def test_a_backend_that_is_not_listed_still_ties():
    error = refused(
        [kernel("a.gemm"), kernel("b.gemm"), kernel("new.gemm")], ties=("b", "a"), error=AmbiguousKernelError
    )
    assert "b.gemm and new.gemm tie" in str(error)


def test_a_backend_that_is_not_listed_comes_last_in_the_reference_band():
    d = decide([kernel("new.gemm", band=REF), kernel("a.gemm", band=REF)], ties=("b", "a"))
    assert (order(d), d.decided_by) == (["a.gemm", "new.gemm"], "ties")


def test_a_tie_below_the_first_place_is_no_error():
    d = decide([kernel("a.gemm"), kernel("b.gemm"), kernel("c.gemm", band=OPT)])
    assert d.kernel.id == "c.gemm"


def test_two_kernels_of_one_rank_in_one_backend_tie():
    error = refused([kernel("a.gemm.x"), kernel("a.gemm.y")], error=AmbiguousKernelError)
    assert "a.gemm.x and a.gemm.y tie" in str(error)


# Falling back to reference kernels


def test_only_a_reference_kernel_left_warns_by_default():
    kernels = [kernel("r.gemm", band=REF), kernel("t.gemm", {"shape.K": "%128"})]
    d = decide(kernels)
    assert d.kernel.id == "r.gemm"
    assert d.warnings == ("gemm: only r.gemm is left, although t serves this device",)


def test_only_a_reference_kernel_left_can_be_an_error():
    kernels = [kernel("r.gemm", band=REF), kernel("t.gemm", {"shape.K": "%128"})]
    error = refused(kernels, fallback="error")
    assert "only r.gemm is left" in str(error)
    assert error.decision.kernel is None
    assert error.decision.accepted


def test_only_a_reference_kernel_left_can_be_silent():
    kernels = [kernel("r.gemm", band=REF), kernel("t.gemm", {"shape.K": "%128"})]
    assert decide(kernels, fallback="reference").warnings == ()


def test_a_kernel_of_another_op_serves_the_device_too():
    kernels = [kernel("r.gemm", band=REF), kernel("t.act", {"device.arch": ">=sm80"})]
    assert decide(kernels).warnings
    assert decide(kernels, env=CPU).warnings == ()


def test_a_backend_whose_library_is_missing_does_not_serve():
    kernels = [kernel("r.gemm", band=REF), kernel("f.act", {"lib.faster": ">=1"})]
    assert decide(kernels).warnings == ()


def test_a_kernel_that_comes_last_is_no_reference():
    kernels = [kernel("last.gemm", band=REF), kernel("reference.gemm", band=REF), kernel("t.gemm", {"shape.K": "%128"})]
    d = decide(kernels, ties=("last", "reference"))
    assert (d.kernel.id, d.warnings) == ("last.gemm", ())


def test_preferring_the_reference_is_no_fallback():
    kernels = [kernel("r.gemm", band=REF), kernel("t.gemm")]
    assert decide(kernels, [rule("r", {"op": "gemm"}, prefer=("r.*",))]).warnings == ()


def test_restricting_to_the_reference_is_no_fallback():
    kernels = [kernel("r.gemm", band=REF), kernel("t.gemm")]
    assert decide(kernels, [rule("r", {"op": "gemm"}, restrict_to=["r.*"])], fallback="error").kernel.id == "r.gemm"


def test_a_rule_that_names_the_reference_as_fallback_accepts_it():
    kernels = [kernel("r.gemm", band=REF), kernel("t.gemm", {"shape.K": "%128"})]
    assert decide(kernels, [rule("r", {"op": "gemm"}, fallback=("r.*",))], fallback="error").warnings == ()


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
