"""The resolver: which of the kernels that may run a call comes first."""

from __future__ import annotations

from fake_calls import GPU, catalog, facts, kernel, rule
from phyai.errors import AmbiguousKernelError
from phyai.kernel import Band
from phyai.policy import Layer, parse_policy
from phyai.predicates import match
from phyai.resolver import resolve
from resolver_cases import OPT, REF, decide, order, refused, verdict

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
