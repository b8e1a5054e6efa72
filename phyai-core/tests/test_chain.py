"""Ops whose decomposition is a chain of the caller's own call sites."""

from __future__ import annotations

import datetime

import attrs
import pytest
from phyai.catalog import Catalog
from phyai.dispatch import Chain, Dispatcher
from phyai.environment import Device, Environment
from phyai.errors import NoKernelError
from phyai.facts import Facts
from phyai.kernel import Band, Capture, Kernel, Numerics, Prepared
from phyai.op import Op
from phyai.ops import CORE_OPS
from phyai.plugins import Plugin, PluginStatus
from phyai.policy import Layer, NumericsDemand, Policy, Restriction, Rule, parse_policy
from phyai.predicates import match
from phyai.testing.case import Case
from phyai.tune import Measurement, Result, Task, tuning_layer
from phyai.tune.choose import untuned
from phyai.tune.session import measurement_of

ACTIVATION = next(op for op in CORE_OPS if op.name == "activation")
#: An op like activation that a caller may chain.
BLOCK: Op = attrs.evolve(ACTIVATION, name="block", aliases=(), chained=True, arg_specs=())


def kernel(id: str, says: str, **more) -> Kernel:
    def prepare(facts, weights, params, resources) -> Prepared:
        return Prepared(run=lambda x, out=None, state=None: f"{says}({x})", refresh=lambda new: None)

    return Kernel(
        id=id, op=id.split(".")[1], when=match(more.pop("when", {})), prepare=prepare, capture=Capture.SAFE,
        numerics=Numerics(reproducible=True), **more,
    )  # fmt: skip


def dispatcher(*kernels: Kernel, rules: str = "") -> Dispatcher:
    every = (kernel("mine.activation", "layer"), *kernels)
    catalog = Catalog.build([Plugin(PluginStatus("mine"), kernels=every)], ops=(ACTIVATION, BLOCK))
    policy = parse_policy(f"schema: phyai.kernel/v1\n{rules}", catalog=catalog).policy if rules else Policy()
    return Dispatcher(catalog, policy, Environment(Device("cpu")))


def chained(of: Dispatcher):
    inner = of.bind("activation", layer="block.act", attrs={"activation": "silu"}, dtypes={"x": "bf16"}, dims={"D": 8})
    chain = Chain(lambda x, out=None, state=None: f"chain[{inner.run(x)}, {state}]", (inner,))
    return of.bind(
        "block", layer="block", attrs={"activation": "silu"}, dtypes={"x": "bf16"}, dims={"D": 8}, chain=chain
    )


def test_without_a_kernel_the_callers_chain_runs_with_its_state():
    of = dispatcher()
    site = chained(of)
    assert site.decide(M=4).kernel.id == "decomposed.block"
    of.freeze()
    assert site.run("x", state=7) == "chain[layer(x), 7]"


def test_a_fused_kernel_of_a_higher_band_goes_first():
    site = chained(dispatcher(kernel("mine.block.fused", "fused", band=Band.OPTIMIZED)))
    assert site.decide(M=4).kernel.id == "mine.block.fused"


def test_a_kernel_that_cannot_run_leaves_the_chain():
    site = chained(dispatcher(kernel("mine.block.fused", "fused", band=Band.OPTIMIZED, when={"shape.D": "%16"})))
    decision = site.decide(M=4)
    assert decision.kernel.id == "decomposed.block"
    assert "D=8 is not a multiple of 16" in decision.rejected[0].reason


@pytest.mark.parametrize("says", ["restrict_to: 'mine.*'", "numerics: [reproducible]"])
def test_a_rule_on_a_site_of_the_chain_rules_fusing_out(says):
    fused = kernel("mine.block.fused", "fused", band=Band.OPTIMIZED)
    site = chained(dispatcher(fused, rules=f"rules:\n- {{id: inner, match: {{op: activation}}, {says}}}\n"))
    decision = site.decide(M=4)
    assert decision.kernel.id == "decomposed.block"
    assert "fusing would bypass rule inner" in decision.rejected[0].reason


def test_a_rule_that_names_the_fused_kernel_allows_it():
    fused = kernel("mine.block.fused", "fused", band=Band.OPTIMIZED)
    rules = (
        "rules:\n- {id: inner, match: {op: activation}, restrict_to: 'mine.*'}\n"
        "- {id: outer, match: {op: block}, restrict_to: mine.block.fused}\n"
    )
    assert chained(dispatcher(fused, rules=rules)).decide(M=4).kernel.id == "mine.block.fused"


@pytest.mark.parametrize("layer", [Layer.SHIPPED, Layer.USER], ids=str)
@pytest.mark.parametrize(
    "says",
    [{"restriction": Restriction(("mine.*",))}, {"numerics": NumericsDemand(reproducible=True)}],
    ids=["restriction", "numerics"],
)
def test_a_rule_on_a_site_of_the_chain_holds_where_the_fused_kernel_measured_faster(says, layer):
    of = dispatcher(kernel("mine.block.fused", "fused"))
    site = chained(of)
    facts = site.decide(M=4).facts
    assert site.decide(M=4).kernel.id == "mine.block.fused"
    tuned = tuning_layer([measured(facts, of, fused=1e-6, chain=3e-6)], of.catalog, Policy(), of.environment)
    assert [chosen.choice.winner for chosen in tuned.chosen] == ["mine.block.fused"]
    inner = Rule("inner", match({"op": "activation"}), layer=layer, **says)
    of.replace_policy(tuned.onto(Policy(rules=(inner,))))
    decision = site.decide(M=4)
    assert decision.kernel.id == "decomposed.block"
    assert f"fusing would bypass rule {inner.ref}" in decision.rejected[0].reason


def test_a_chain_that_measured_faster_takes_the_place_of_the_fused_kernel():
    of = dispatcher(kernel("mine.block.fused", "fused"))
    site = chained(of)
    facts = site.decide(M=4).facts
    tuned = tuning_layer([measured(facts, of, fused=3e-6, chain=1e-6)], of.catalog, Policy(), of.environment)
    of.replace_policy(tuned.onto(Policy()))
    assert (site.decide(M=4).kernel.id, site.decide(M=4).decided_by) == ("decomposed.block", "tuning")


def measured(facts: Facts, of: Dispatcher, **seconds: float) -> Measurement:
    """A record of the fused kernel and the chain, timed in a model."""
    ids = {"fused": "mine.block.fused", "chain": "decomposed.block"}
    case = Case({"M": 4, "D": 8}, {"x": "bf16"}, {"activation": "silu"})
    results = {ids[name]: Result((t,) * 9) for name, t in seconds.items()}
    task, now = Task("block", case), datetime.datetime.now(datetime.UTC)
    candidates = untuned(facts, of.catalog, of.policy, of.environment)
    return measurement_of(task, results, "live", candidates, of.catalog, of.environment, now)


def test_a_restriction_on_everything_is_kept_by_the_chain():
    """Its calls are restricted themselves; the fused kernel, though it is allowed by name, would bypass that."""
    fused = kernel("mine.block.fused", "fused", band=Band.OPTIMIZED)
    site = chained(dispatcher(fused, rules="rules:\n- {id: all, match: {}, restrict_to: 'mine.*'}\n"))
    assert site.decide(M=4).kernel.id == "decomposed.block"


def test_a_restriction_on_the_op_alone_is_not_kept_by_the_chain():
    of = dispatcher(
        kernel("mine.block.fused", "fused", when={"shape.D": "%16"}),
        rules="rules:\n- {id: only, match: {op: block}, restrict_to: 'mine.*'}\n",
    )
    with pytest.raises(NoKernelError, match="not among what rule only"):
        chained(of).decide(M=4)


def test_a_rule_turns_fusing_off_and_replacing_the_policy_on_again():
    fused = kernel("mine.block.fused", "fused", band=Band.OPTIMIZED)
    of = dispatcher(fused, rules="rules:\n- {id: off, match: {op: block}, restrict_to: decomposed.block}\n")
    site = chained(of)
    assert site.decide(M=4).kernel.id == "decomposed.block"
    change = of.replace_policy(Policy())
    assert site.name in change.thawed
    assert site.decide(M=4).kernel.id == "mine.block.fused"


@pytest.mark.parametrize("how", ["policy", "failure"])
def test_a_chain_whose_turn_comes_later_may_decide_its_calls_then(how):
    of = dispatcher(kernel("mine.block", "fused", band=Band.OPTIMIZED))
    site = chained(of)
    of.freeze()
    assert (site.run("x"), [inner.frozen for inner in site.chain.sites]) == ("fused(x)", [True])
    if how == "policy":
        off = Rule("off", match({"op": "block"}), restriction=Restriction(("decomposed.block",)))
        of.replace_policy(Policy(rules=(off,)))
    else:
        of.exclude("mine.block", "it failed in a capture")
    assert [inner.frozen for inner in site.chain.sites] == [False]
    of.freeze()
    assert site.run("x") == "chain[layer(x), None]"


def test_a_site_without_a_chain_has_fused_kernels_only():
    of = dispatcher()
    site = of.bind("block", attrs={"activation": "silu"}, dtypes={"x": "bf16"}, dims={"D": 8})
    with pytest.raises(NoKernelError, match="without a chain of layers"):
        site.decide(M=4)


def test_an_excluded_kernel_is_not_chosen_again():
    of = dispatcher(kernel("mine.block.fused", "fused", band=Band.OPTIMIZED))
    site = chained(of)
    of.freeze()
    assert site.decisions[0].kernel.id == "mine.block.fused"
    epoch = of.epoch
    of.exclude("mine.block.fused", "it failed while a graph was captured")
    assert of.epoch > epoch
    assert not of.frozen
    decision = site.decide(M=4)
    assert decision.kernel.id == "decomposed.block"
    assert decision.rejected[0].reason == "it failed while a graph was captured"


def test_released_a_dispatcher_holds_no_site():
    of = dispatcher()
    chained(of)
    of.release()
    assert of.sites == ()
