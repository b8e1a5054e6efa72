"""Aspects: which rule settles what, over layers and priorities, and the index against asking every rule."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.facts import Facts
from phyai.kernel import Numerics
from phyai.policy import Defaults, Layer, NumericsDemand, Policy, Restriction, Rule, default_policy
from phyai.predicates import match

GEMM = {"op": "gemm"}
CALL = Facts({"op": "gemm", "role": "expert", "shape.M": 5})


def rule(id, priority=0, layer=Layer.USER, when=GEMM, **said):
    if "restrict" in said:
        said["restriction"] = Restriction(said.pop("restrict"))
    return Rule(id, match(when), priority, layer=layer, **said)


def aspects(*rules, call=CALL):
    return Policy(rules=rules).aspects(call)


def test_a_strong_preference_does_not_cancel_a_weak_restriction():
    found = aspects(rule("low", 1, restrict=("torch.*",)), rule("high", 9, prefer=("acme.gemm",)))
    assert found.restriction.id == "low"
    assert [r.id for r in found.prefer] == ["high"]


def test_the_highest_priority_that_speaks_of_an_aspect_settles_it():
    found = aspects(
        rule("a", 1, restrict=("torch.*",)),
        rule("b", 5, numerics=NumericsDemand(reproducible=True)),
        rule("c", 3, restrict=("acme.*",), numerics=NumericsDemand()),
    )
    assert found.restriction.id == "c"
    assert found.numerics.id == "b"


def test_a_layer_beats_any_priority_below_it():
    found = aspects(
        rule("shipped", 900, Layer.SHIPPED, restrict=("a.*",)),
        rule("tuned", 800, Layer.TUNING, restrict=("b.*",)),
        rule("user", -5, Layer.USER, restrict=("c.*",)),
        rule("override", -9, Layer.OVERRIDE, restrict=("d.*",)),
    )
    assert found.restriction.id == "override"
    assert [r.id for r in found.matched] == ["override", "user", "tuned", "shipped"]


def test_every_layer_orders_what_the_layers_above_leave_equal():
    found = aspects(
        rule("user", prefer=("a.gemm", "b.*")),
        rule("weaker", -1, prefer=("c.gemm",)),
        rule("tuned", layer=Layer.TUNING, prefer=("d.gemm",)),
    )
    assert [r.id for r in found.prefer] == ["user", "tuned"]
    assert found.preference("a.gemm") == (0, 1)
    assert found.preference("b.gemm") == (1, 1)
    assert found.preference("d.gemm") == (2, 0)
    assert found.preference("e.gemm") == (2, 1)


def test_params_are_merged_key_by_key():
    found = aspects(
        rule("low", 1, params={"tile": 64, "stages": 2}),
        rule("high", 2, params={"tile": 128}),
    )
    assert {k: (v, r.id) for k, (v, r) in found.params("torch.gemm").items()} == {
        "tile": (128, "high"),
        "stages": (2, "low"),
    }


def test_params_beside_kernels_are_for_those_kernels_only():
    found = aspects(rule("a", prefer=("torch.*",), params={"tile": 64}))
    assert found.params("torch.gemm")["tile"][0] == 64
    assert found.params("acme.gemm") == {}


def test_a_fallback_beside_a_restriction_that_lost_is_lost_with_it():
    found = aspects(
        rule("low", 1, restrict=("a.*",), fallback=("reference.*",)),
        rule("high", 2, restrict=("b.*",)),
    )
    assert found.restriction.id == "high"
    assert found.fallback is None


def test_a_fallback_of_its_own_is_an_aspect_of_its_own():
    found = aspects(
        rule("low", 1, restrict=("a.*",), fallback=("reference.*",)),
        rule("high", 2, fallback=("torch.*",)),
    )
    assert found.fallback.id == "high"


def test_what_a_policy_does_not_say_comes_from_the_one_below():
    low = Policy(
        defaults=Defaults("error", NumericsDemand(True), ("a", "b")), profile="autotune", quantization={"x": 1}
    )
    high = Policy(rules=(rule("r"),), defaults=Defaults(ties=("b", "c")), source="p.yaml")
    both = high.over(low)
    assert (both.fallback, both.defaults.numerics, both.profile) == ("error", NumericsDemand(True), "autotune")
    assert both.defaults.ties == ("b", "c", "a")
    assert both.quantization == {"x": 1}
    assert both.source == "p.yaml"


def test_another_profile_leaves_the_rest():
    policy = Policy(rules=(rule("r"),), quantization={"method": "rtn"}, profile="static")
    assert policy.with_profile("autotune") == Policy(
        rules=policy.rules, quantization=policy.quantization, profile="autotune"
    )


def test_tuned_rules_replace_the_tuned_rules_before_them():
    policy = Policy(rules=(rule("user"),)).with_rules([rule("old")], Layer.TUNING)
    policy = policy.with_rules([rule("new")], Layer.TUNING)
    assert [(r.id, str(r.layer)) for r in policy.rules] == [("user", "user"), ("new", "tuning")]


def test_the_shipped_policy_orders_our_backends_and_names_no_kernel():
    shipped = default_policy()
    assert shipped.defaults.ties[:5] == ("cuda", "flashinfer", "humming", "torch", "reference")
    assert shipped.rules == ()


@pytest.mark.parametrize(
    ("demand", "numerics", "why"),
    [
        (NumericsDemand(), Numerics(reproducible=False), None),
        (NumericsDemand(reproducible=True), Numerics(reproducible=True), None),
        (NumericsDemand(reproducible=True), Numerics(reproducible=False), "not bitwise reproducible"),
        (NumericsDemand(batch_invariant=True), Numerics(reproducible=True), "not batch invariant"),
        (NumericsDemand(accumulation=("fp32",)), Numerics(True, accumulation="fp16"), "accumulates in fp16, not fp32"),
        (NumericsDemand(True, True), Numerics(False), "not bitwise reproducible; not batch invariant"),
    ],
)
def test_a_demand_says_what_a_kernel_lacks(demand, numerics, why):
    assert demand.why_not(numerics) == why


_CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "op": st.sampled_from(["gemm", "rope", ["gemm", "rope"], "ge*"]),
        "role": st.sampled_from(["a", ["a", "b"], "*", None]),
        "shape.M": st.sampled_from([1, 4, "<=4", "%2", ">2,<9", [1, 8], None]),
        "attrs.causal": st.sampled_from([True, False]),
        "any_of": st.just([{"role": "a"}, {"shape.M": 8}]),
    },
)
_CALLS = st.fixed_dictionaries(
    {"op": st.sampled_from(["gemm", "rope"])},
    optional={
        "role": st.sampled_from(["a", "b", "c"]),
        "shape.M": st.integers(1, 9),
        "attrs.causal": st.booleans(),
    },
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(_CONDITIONS, st.integers(0, 2)), max_size=12), st.lists(_CALLS, min_size=1, max_size=4))
def test_the_index_finds_what_asking_every_rule_finds(drawn, calls):
    rules = tuple(rule(f"r{i}", priority, when=when) for i, (when, priority) in enumerate(drawn))
    policy = Policy(rules=rules)
    for call in calls:
        by_hand = sorted((r for r in rules if r.match.holds(call)), key=lambda r: -r.priority)
        assert policy.matching(Facts(call)) == tuple(by_hand)
        known = Facts({name: value for name, value in call.items() if name == "op"})
        assert {r.id for r in by_hand} <= {r.id for r in policy.candidates(known)}


def test_one_call_among_a_thousand_rules_asks_few_of_them():
    rules = tuple(rule(f"r{i}", when={"op": "gemm", "role": f"r{i}", "shape.M": f"{i}..{i + 3}"}) for i in range(1000))
    policy = Policy(rules=rules)
    assert [r.id for r in policy.candidates(Facts({"op": "gemm", "role": "r7"}))] == ["r7"]
    assert len(policy.candidates(Facts({"op": "gemm", "shape.M": 500}))) == 4
