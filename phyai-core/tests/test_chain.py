"""Ops whose decomposition is a chain of the caller's own call sites."""

from __future__ import annotations

import attrs
import pytest
from phyai.catalog import Catalog
from phyai.dispatch import Chain, Dispatcher
from phyai.environment import Device, Environment
from phyai.errors import NoKernelError
from phyai.kernel import Band, Capture, Kernel, Numerics, Prepared
from phyai.op import Op
from phyai.ops import CORE_OPS
from phyai.plugins import Plugin, PluginStatus
from phyai.policy import Policy, parse_policy
from phyai.predicates import match

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
    assert "it failed while a graph was captured" in decision.rejected[0].reason


def test_released_a_dispatcher_holds_no_site():
    of = dispatcher()
    chained(of)
    of.release()
    assert of.sites == ()
