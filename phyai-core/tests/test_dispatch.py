"""Call sites: deciding on the first call of a kind, remembering."""

from __future__ import annotations

import threading

import pytest
from fake_calls import CPU, Fake, Placed, catalog, dispatcher, gemm_site, kernel, policy, rule, x
from phyai.catalog import Catalog
from phyai.dispatch import Dispatcher
from phyai.errors import CallError, UndeclaredFactError
from phyai.kernel import Band, Prepared
from phyai.plugins.observers import Observers

OPT = Band.OPTIMIZED


def counting(id, prepared, **more):
    """A kernel that notes the facts of every preparation."""

    def prepare(facts, weights, params, resources):
        prepared.append(facts)
        return Prepared(run=lambda *inputs, out=None, state=None: id)

    return kernel(id, prepare=prepare, **more)


# Calling


def test_a_call_checks_its_inputs_against_the_signature():
    site = gemm_site(dispatcher(kernel("a.gemm")))
    for wrong, words in [
        (Fake((5, 63)), "K=63, but the site was bound to K=64"),
        (Fake(()), "x has shape (); the signature asks for (...M K)"),
        (Fake((5, 64), "torch.float32"), "x has dtype fp32, but the site was bound to bf16"),
        (None, "x is missing"),
    ]:
        with pytest.raises(CallError) as caught:
            site.run(wrong)
        assert words in str(caught.value)
        assert "gemm at site layers.0:gemm" in str(caught.value)
        assert "signature: x[...M K]" in str(caught.value)


def test_the_check_holds_for_shapes_that_differ_from_remembered_ones():
    site = gemm_site(dispatcher(kernel("a.gemm")))
    site.run(x(5))
    with pytest.raises(CallError, match="dtype fp32"):
        site.run(Fake((5, 64), "torch.float32"))
    with pytest.raises(CallError, match="K=63"):
        site.run(Fake((5, 63)))


def test_an_optional_input_must_be_given_as_bound():
    made = dispatcher(kernel("a.act"))
    bare = made.bind("act", dtypes={"x": "bf16"}, dims={"D": 8})
    masked = made.bind("act", dtypes={"x": "bf16"}, dims={"D": 8}, present=("mask",))
    assert bare.run(Fake((5, 8))) == masked.run(Fake((5, 8)), Fake((5,), "bool")) == "a.act"
    with pytest.raises(CallError, match="mask is given, but the site was bound without it"):
        bare.run(Fake((5, 8)), Fake((5,), "bool"))
    with pytest.raises(CallError, match="mask is missing"):
        masked.run(Fake((5, 8)))


def test_out_and_state_reach_the_kernel():
    seen = []

    def prepare(facts, weights, params, resources):
        return Prepared(run=lambda x, out=None, state=None: seen.append((out, state)))

    site = gemm_site(dispatcher(kernel("a.gemm", prepare=prepare)))
    first, second = Fake((5, 32)), Fake((5, 32))
    site.run(x(), out=first, state="s")
    site.run(x(), out=second)
    assert [(out is first, out is second, state) for out, state in seen] == [(True, False, "s"), (False, True, None)]


def test_prepare_gets_weights_and_params():
    got = {}

    def prepare(facts, weights, params, resources):
        got.update(weights=weights, params=params)
        return Prepared(run=lambda x, out=None, state=None: None)

    from phyai.kernel import Param

    a = kernel("a.gemm", prepare=prepare, params=(Param("tile", ""),))
    site = gemm_site(dispatcher(a, rules=[rule("r", {"op": "gemm"}, params={"tile": 64})]))
    site.run(x())
    assert got == {"weights": {"weight": Fake((32, 64))}, "params": {"tile": 64}}


# Remembering


def test_calls_that_nothing_can_tell_apart_share_an_entry():
    prepared = []
    site = gemm_site(dispatcher(counting("a.gemm", prepared), kernel("b.gemm", {"shape.M": ">64"}, band=OPT)))
    assert [site.run(x(m)) for m in (5, 7, 64)] == ["a.gemm"] * 3
    assert (len(prepared), len(site.decisions)) == (1, 1)


def test_a_rule_can_tell_them_apart():
    rules = [rule("tiny", {"op": "gemm", "shape.M": "<=6"}, prefer=("b.gemm",))]
    site = gemm_site(dispatcher(kernel("a.gemm", band=OPT), kernel("b.gemm"), rules=rules))
    assert [site.run(x(m)) for m in (5, 7, 6)] == ["b.gemm", "a.gemm", "b.gemm"]


def test_a_rule_that_cannot_match_the_site_tells_nothing_apart():
    rules = [rule("other", {"op": "gemm", "role": "vision", "shape.M": "<=6"}, prefer=("b.gemm",))]
    site = gemm_site(dispatcher(kernel("a.gemm", band=OPT), kernel("b.gemm"), rules=rules), role="expert")
    site.run(x(5))
    site.run(x(7))
    assert (site.dynamic, len(site.decisions)) == (False, 1)


def test_the_winners_specialization_tells_entries_apart():
    prepared = []
    site = gemm_site(
        dispatcher(counting("a.gemm", prepared, specializes_on=("shape.M",)), kernel("b.gemm", band=Band.REFERENCE))
    )
    for m in (5, 7, 5):
        site.run(x(m))
    assert [facts["shape.M"] for facts in prepared] == [5, 7]


def test_a_losers_specialization_does_not():
    prepared = []
    site = gemm_site(dispatcher(counting("a.gemm", prepared, band=OPT), kernel("b.gemm", specializes_on=("shape.M",))))
    for m in (5, 7):
        site.run(x(m))
    assert len(prepared) == 1


@pytest.mark.parametrize("read", [lambda f: f["shape.M"], lambda f: f.get("shape.M"), lambda f: "shape.M" in f])
def test_prepare_may_not_read_a_dynamic_fact_that_it_does_not_declare(read):
    def prepare(facts, weights, params, resources):
        read(facts)

    site = gemm_site(dispatcher(kernel("a.gemm", prepare=prepare), kernel("b.gemm", band=Band.REFERENCE)))
    with pytest.raises(UndeclaredFactError, match=r"a\.gemm: prepare read shape\.M.*specializes_on"):
        site.run(x())


def test_prepare_may_read_static_facts_and_ask_for_absent_ones():
    def prepare(facts, weights, params, resources):
        assert facts["shape.K"] == 64
        assert facts.get("quant.layout") is None
        assert facts.under("shape") == {"N": 32, "K": 64}
        return Prepared(run=lambda x, out=None, state=None: "ran")

    assert gemm_site(dispatcher(kernel("a.gemm", prepare=prepare))).run(x()) == "ran"


def test_a_dimension_fixed_when_bound_is_static():
    site = gemm_site(dispatcher(kernel("a.gemm"), kernel("b.gemm", {"shape.M": "<=8"}, band=OPT)), dims={"M": 5})
    assert site.run(x(5)) == "b.gemm"
    assert not site.dynamic
    with pytest.raises(CallError, match="M=6, but the site was bound to M=5"):
        site.run(x(6))


def test_many_shapes_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr("phyai.dispatch.shortcuts.MAX_SHORTCUTS", 8)
    site = gemm_site(dispatcher(kernel("a.gemm")))
    for m in range(100):
        assert site.run(x(m)) == "a.gemm"
        assert site.run(x(m), out=Placed((m, 32))) == "a.gemm"
    assert len(site._shortcuts._found) <= 8
    assert 0 < len(site._shortcuts._fitting) <= 8


def test_decide_answers_without_running():
    site = gemm_site(dispatcher(kernel("a.gemm"), kernel("b.gemm", {"shape.M": ">64"}, band=OPT)))
    assert site.decide(M=50).kernel.id == "a.gemm"
    assert site.decide(M=65).kernel.id == "b.gemm"
    with pytest.raises(CallError, match="depends on M"):
        site.decide()
    with pytest.raises(CallError, match="no dimension 'L'"):
        site.decide(L=3)


# Several at once


def test_the_first_decision_is_made_once_by_many_threads():
    prepared, results = [], []
    site = gemm_site(dispatcher(counting("a.gemm", prepared)))
    barrier = threading.Barrier(8)

    def call():
        barrier.wait()
        results.append(site.run(x()))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["a.gemm"] * 8
    assert len(prepared) == 1


def test_calls_and_new_policies_at_once_never_run_another_kernel():
    """Every answer is right under one of the two policies that are in force by turns."""
    made = dispatcher(
        kernel("a.gemm"), kernel("b.gemm", {"shape.M": ">64"}, band=OPT), kernel("c.gemm", band=Band.REFERENCE)
    )
    site = gemm_site(made)
    policies = made.policy, policy(rule("c", {"op": "gemm", "shape.M": "<=8"}, pin="c.gemm"))
    right = {5: {"a.gemm", "c.gemm"}, 20: {"a.gemm"}, 100: {"b.gemm"}}
    wrong, stop = [], threading.Event()

    def call():
        while not stop.is_set():
            for m, ids in right.items():
                if (answer := site.run(x(m))) not in ids:
                    wrong.append((m, answer))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(60):
        made.replace_policy(policies[turn % 2])
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_dispatchers_have_policies_of_their_own():
    world = catalog(kernel("a.gemm"), kernel("b.gemm"))
    first = Dispatcher(world, policy(rule("r", {"op": "gemm"}, pin="a.gemm")), CPU)
    second = Dispatcher(world, policy(rule("r", {"op": "gemm"}, pin="b.gemm")), CPU)
    sites = gemm_site(first), gemm_site(second)
    assert [site.run(x()) for site in sites] == ["a.gemm", "b.gemm"]


def test_observers_hear_every_new_decision_once():
    heard = []
    base = catalog(kernel("a.gemm"))
    world = Catalog(ops=base.ops, kernels=base.kernels, observers=Observers((("spy", heard.append),)))
    site = gemm_site(Dispatcher(world, policy(), CPU))
    site.run(x(5))
    site.run(x(6))
    assert [d.kernel.id for d in heard] == ["a.gemm"]


# Reporting


def test_the_report_lists_sites_and_rules_that_never_matched():
    rules = [rule("used", {"op": "gemm"}, prefer=("a.gemm",)), rule("never", {"op": "act"}, prefer=("a.act",), line=7)]
    made = dispatcher(kernel("a.gemm"), kernel("a.act"), rules=rules)
    gemm_site(made).run(x())
    report = made.report()
    assert [(s.name, s.op, len(s.decisions)) for s in report.sites] == [("layers.0:gemm", "gemm", 1)]
    assert [str(ref) for ref in report.unmatched] == ["never (policy.yaml:7)"]
    assert report.to_json()["unmatched_rules"][0]["id"] == "never"
