"""The resolver: rules that restrict, and what is left where nothing else is."""

from __future__ import annotations

import pytest
from fake_calls import CPU, OVERRIDE, kernel, policy, rule
from phyai.decision import Stage
from phyai.resolver import in_short
from resolver_cases import OPT, REF, decide, order, refused, verdict

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
