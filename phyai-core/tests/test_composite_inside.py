"""Composite ops whose parts are composite: rules on what is inside, and layers that a site says."""

from __future__ import annotations

import pytest
from fake_calls import ACT, CPU, GEMM, MLP, Fake, catalog, kernel, policy, rule
from phyai.catalog import op_vocabulary
from phyai.composite import part_facts
from phyai.decision import Stage
from phyai.dispatch import Dispatcher
from phyai.explain import to_text
from phyai.facts import Facts
from phyai.kernel import Band, Prepared
from phyai.op import Op, Part
from phyai.ops import CORE_OPS
from phyai.resolver import resolve
from phyai.testing.case import quantizable

OPS = {op.name: op for op in CORE_OPS}
#: An activation and the block behind it, which is itself composite.
BEHIND = Op(
    "behind", "mlp(act(x))", tensors=MLP.tensors, dims=MLP.dims, attributes=MLP.attributes,
    parts=(
        Part("first", "act", attrs={"kind": "kind"}, dims={"D": "K"}),
        Part("block", "mlp", weights={"up": "up", "down": "down"}, attrs={"kind": "kind"}, parts=MLP.parts),
    ),
    compose="test_composite_inside:compose",
)  # fmt: skip
CALL = Facts({"op": "behind", "shape.M": 5, "shape.K": 64, "shape.I": 256, "shape.N": 32, "attrs.kind": "relu",
              "dtype.x": "bf16", "dtype.up": "bf16", "dtype.down": "bf16", "dtype.y": "bf16",
              "role": "expert", "layer": "layers.1", "mode.capture": False})  # fmt: skip
PARTS = [kernel("a.gemm", band=Band.OPTIMIZED), kernel("a.act")]


def compose(sites, facts):
    first, block = sites["first"], sites["block"]
    return lambda x, out=None, state=None: block.run(first.run(x), out=out)


def decide(kernels, rules=(), call=CALL):
    return resolve(call, catalog(*kernels, ops=(GEMM, ACT, MLP, BEHIND)), policy(*rules), CPU)


def verdict(decision, id):
    return next(c for c in decision.candidates if c.kernel == id)


def test_facts_of_the_innermost_call_come_down_through_both_levels():
    call = CALL.replace(
        {"parts.block.parts.down.quant.weight": "int4", "parts.block.parts.down.quant.layout": "humming"}
    )
    block = part_facts(BEHIND, BEHIND.parts[1], MLP, call)
    down = part_facts(MLP, MLP.parts[2], GEMM, block)
    assert (down["quant.weight"], down["quant.layout"], down["shape.K"]) == ("int4", "humming", 256)
    assert (block["layer"], down["layer"]) == ("layers.1.block", "layers.1.block.down")
    assert not any(name.startswith("quant.") for name in block)


def test_a_part_has_the_layer_that_the_site_says():
    call = CALL.replace({"parts.first.layer": "layers.1.norm", "parts.block.layer": "layers.1.mlp"})
    assert part_facts(BEHIND, BEHIND.parts[0], ACT, call)["layer"] == "layers.1.norm"
    block = part_facts(BEHIND, BEHIND.parts[1], MLP, call)
    assert part_facts(MLP, MLP.parts[0], GEMM, block)["layer"] == "layers.1.mlp.up"


def test_its_facts_are_declared_and_others_are_not():
    vocabulary = op_vocabulary(BEHIND)
    known = ["parts.block.parts.up.quant.weight", "parts.first.layer", "parts.block.layer"]
    unknown = ["parts.block.quant.weight", "parts.block.parts.first.quant.weight", "parts.block.parts.up.layer"]
    assert [vocabulary.find(name) is not None for name in (*known, *unknown)] == [True] * 3 + [False] * 3


def test_without_a_fused_kernel_a_chain_of_a_chain_runs():
    d = decide(PARTS)
    assert (d.kernel.id, d.parts["block"].kernel.id) == ("decomposed.behind", "decomposed.mlp")
    assert d.kernel.band is Band.GENERAL
    assert "part block:" in to_text(d)
    assert "part down:" in to_text(d)


def test_a_fused_kernel_of_the_block_runs_in_the_chain():
    d = decide([*PARTS, kernel("f.mlp", band=Band.OPTIMIZED)])
    assert (d.kernel.id, d.parts["block"].kernel.id) == ("decomposed.behind", "f.mlp")


@pytest.mark.parametrize("conditions", [{"op": "gemm"}, {"layer": "*.block.down"}, {"op": "mlp"}])
def test_a_restriction_anywhere_inside_rules_fusion_out(conditions):
    kernels = [*PARTS, kernel("f.behind", band=Band.SPECIALIZED), kernel("f.mlp", band=Band.SPECIALIZED)]
    allowed = ["a.gemm", "decomposed.mlp"]
    d = decide(kernels, [rule("mine", conditions, restrict_to=allowed)])
    lost = verdict(d, "f.behind")
    assert (d.kernel.id, lost.stage) == ("decomposed.behind", Stage.PARTS)
    assert "fusing would bypass rule mine" in lost.reason
    named = {"op": "on part block ", "layer": "on part block.down ", "mlp": "on part block "}
    assert (named["layer"] if "layer" in conditions else "on part block") in lost.reason


def test_a_restriction_without_an_op_holds_of_the_innermost_kernels():
    kernels = [*PARTS, kernel("f.behind", band=Band.SPECIALIZED), kernel("f.mlp", band=Band.SPECIALIZED)]
    d = decide(kernels, [rule("mine", {"role": "expert"}, restrict_to=["a.*"])])
    assert (d.kernel.id, d.parts["block"].kernel.id) == ("decomposed.behind", "decomposed.mlp")


def test_a_preference_for_every_innermost_kernel_is_one_for_the_chain():
    kernels = [*PARTS, kernel("f.behind", band=Band.SPECIALIZED), kernel("f.mlp", band=Band.REFERENCE)]
    assert decide(kernels, [rule("mine", {"role": "expert"}, prefer=("a.*",))]).kernel.id == "decomposed.behind"
    assert decide(kernels).kernel.id == "f.behind"


def test_a_packed_weight_inside_the_block_needs_a_kernel_that_reads_it():
    call = CALL.replace({"parts.block.parts.down.quant.layout": "packed"})
    d = decide([*PARTS, kernel("p.gemm", layouts=("packed",)), kernel("f.behind", band=Band.SPECIALIZED)], call=call)
    assert verdict(d, "f.behind").reason == "the weight of part block.down lies as packed, this kernel reads plain"


def test_a_site_runs_refreshes_and_freezes_its_chain_of_a_chain():
    seen = []

    def product(facts, weights, params, resources):
        rows = weights["weight"].shape[0]
        return Prepared(lambda x, out=None, state=None: Fake((x.shape[0], rows)), refresh=seen.append)

    act = kernel("a.act", prepare=lambda *_: Prepared(lambda x, mask=None, out=None, state=None: x))
    kernels = (kernel("a.gemm", prepare=product), act)
    of = Dispatcher(catalog(*kernels, ops=(GEMM, ACT, MLP, BEHIND)), policy(), CPU)
    weights = {"up": Fake((256, 64)), "down": Fake((32, 256))}
    site = of.bind("behind", layer="layers.1", weights=weights, dtypes={"x": "bf16"})
    assert site.run(Fake((5, 64))).shape == (5, 32)
    assert [inner.name for inner in of.sites] == [
        "layers.1:behind", "layers.1:behind/first:act", "layers.1:behind/block:mlp",
        "layers.1:behind/block:mlp/up:gemm", "layers.1:behind/block:mlp/act:act", "layers.1:behind/block:mlp/down:gemm",
    ]  # fmt: skip
    site.refresh(weights)
    assert seen == [{"weight": weights["up"]}, {"weight": weights["down"]}]
    of.freeze()
    assert site.run(Fake((5, 64))).shape == (5, 32)


@pytest.mark.parametrize(
    ("op", "weights"),
    [
        ("rms_norm_add_gated_mlp", {n: f"parts.block.parts.{n}." for n in ("gate_up", "down")}),
        ("rms_norm_add_qkv_rope_kv_write", {"weight": "parts.block.parts.qkv."}),
    ],
)
def test_the_weights_of_the_blocks_behind_a_norm_can_be_quantized(op, weights):
    assert quantizable(OPS[op]) == weights
