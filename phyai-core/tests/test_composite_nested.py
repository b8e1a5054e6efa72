"""Composite ops of composite ops: facts, layouts, rules and kernels of the parts of a part."""

from __future__ import annotations

import attrs
import pytest
from phyai.catalog import Catalog, op_vocabulary
from phyai.composite import depth, form_of, innermost, part_facts, readers
from phyai.decision import Stage
from phyai.dispatch import Chain, Dispatcher
from phyai.dispatch.ahead import awaited
from phyai.environment import Device, Environment
from phyai.errors import DeclarationError
from phyai.explain import explain_call
from phyai.facts import Facts
from phyai.kernel import Band, Capture, Kernel, Numerics, Prepared
from phyai.op import Op
from phyai.ops import CORE_OPS
from phyai.plugins import Plugin, PluginStatus
from phyai.policy import Layer, Policy, Restriction, Rule
from phyai.predicates import match
from phyai.quant import QuantScheme, TensorQuant
from phyai.quant.formats import QuantFormat
from phyai.resolver import resolve

torch = pytest.importorskip("torch")

from phyai.quant.realize import dequantize, quantize_weight  # noqa: E402

OPS = {op.name: op for op in CORE_OPS}
NESTED = OPS["gated_mlp_gated_residual"]
CPU = Environment(Device("cpu"))
INT8 = QuantScheme(TensorQuant("int8", "channel"))
ASKED = {
    "shape.M": 4, "shape.R": 2, "shape.K": 8, "shape.I": 6, "shape.N": 8, "dtype.x": "fp32",
    "attrs.activation": "silu", "role": "expert", "layer": "expert.mlp",
}  # fmt: skip


def gemm(facts, weights, params, resources):
    weight = weights["weight"]

    def run(x, out=None, state=None):
        if isinstance(weight, torch.Tensor):
            return x @ weight.T
        codes = weight.codes if weight.layout == "plain" else weight.packed["turned"].T
        return x @ dequantize(attrs.evolve(weight, codes=codes, layout="plain", packed={})).T

    return Prepared(run, refresh=lambda new: weight.copy_(new["weight"]))


def activation(facts, weights, params, resources):
    def run(x, out=None, state=None):
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    return Prepared(run)


def gated_residual(facts, weights, params, resources):
    def run(residual, x, gate, out=None, state=None):
        return residual + x * gate.repeat_interleave(len(x) // len(gate), 0)

    return Prepared(run)


def kernel(id, make, band=Band.OPTIMIZED, **more):
    return Kernel(
        id=id, op=id.split(".")[1], when=match(more.pop("when", {})), prepare=make, band=band, capture=Capture.SAFE,
        numerics=Numerics(reproducible=True), **more,
    )  # fmt: skip


def pack(weight):
    return attrs.evolve(weight, codes=None, layout="turned", packed={"turned": weight.codes.t().contiguous()})


def unpack(weight):
    return attrs.evolve(weight, codes=weight.packed["turned"].t().contiguous(), layout="plain", packed={})


TURNED = QuantFormat("a.turned", "turned", match({"quant.weight": "int8"}), pack, unpack)
KERNELS = (
    kernel("a.gemm.k", gemm), kernel("a.gated_activation.k", activation), kernel("a.gated_residual.k", gated_residual),
)  # fmt: skip
FUSED = kernel("f.gated_mlp_gated_residual.k", gemm, band=Band.SPECIALIZED)


def catalog(*more, formats=()):
    return Catalog.build([Plugin(PluginStatus("a"), kernels=(*KERNELS, *more), quant_formats=formats)])


def decide(*more, rules=(), facts=ASKED):
    call = Facts({"op": NESTED.name, **facts, "dtype.y": "fp32"})
    return resolve(call, catalog(*more), Policy(rules=rules), CPU)


def rule(id, condition, **more):
    if "restrict_to" in more:
        more["restriction"] = Restriction(tuple(more.pop("restrict_to")))
    return Rule(id=id, match=match(condition), layer=Layer.USER, **more)


def tensors(seed=0):
    make = torch.Generator().manual_seed(seed)
    return torch.randn(12, 8, generator=make), torch.randn(8, 6, generator=make)


def test_a_weight_is_found_through_the_parts():
    assert [part.name for part in readers(NESTED, "gate_up")] == ["gated_mlp", "gate_up"]
    assert form_of(NESTED, "gate_up") == "parts.gated_mlp.parts.gate_up."
    assert form_of(OPS["gemm"], "weight") == ""
    found = {head: dict(part.weights) for head, part in innermost(NESTED.parts)}
    assert found["parts.gated_mlp.parts.down."] == {"weight": "down"}
    assert [depth(OPS[name].parts) for name in ("gemm", "gated_mlp", NESTED.name)] == [0, 1, 2]


def test_its_facts_are_in_the_vocabulary_and_reach_the_inner_part():
    name = "parts.gated_mlp.parts.down.quant.weight"
    assert op_vocabulary(NESTED).find(name) is not None
    assert op_vocabulary(NESTED).find("parts.gated_mlp.quant.weight") is None
    call = Facts({"op": NESTED.name, **ASKED, name: "int8"})
    block, down = NESTED.parts[0], OPS["gated_mlp"].parts[2]
    inner = part_facts(OPS["gated_mlp"], down, OPS["gemm"], part_facts(NESTED, block, OPS["gated_mlp"], call))
    assert (inner["quant.weight"], inner["shape.K"], inner["shape.N"]) == ("int8", 6, 8)


def test_a_part_that_stands_for_the_whole_keeps_its_layer():
    block, added = NESTED.parts
    call = Facts({"op": NESTED.name, **ASKED})
    assert part_facts(NESTED, block, OPS["gated_mlp"], call)["layer"] == "expert.mlp"
    assert part_facts(NESTED, added, OPS["gated_residual"], call)["layer"] == "expert.mlp.gated_residual"


def test_parts_that_are_not_those_of_their_op_are_refused():
    wrong = attrs.evolve(NESTED, name="other", parts=tuple(attrs.evolve(part, parts=()) for part in NESTED.parts))
    with pytest.raises(DeclarationError, match="its parts are not those of the op gated_mlp"):
        Catalog.build([Plugin(PluginStatus("b"), ops=(wrong,))])


def test_the_chain_runs_the_chain_inside_it_bit_for_bit():
    gate_up, down = tensors()
    x, residual, gate = torch.randn(4, 8), torch.randn(4, 8), torch.randn(2, 8)
    of = Dispatcher(catalog(), Policy(), CPU)
    site = of.bind(
        NESTED.name, layer="expert.mlp", weights={"gate_up": gate_up, "down": down}, dtypes={"x": "fp32"},
        attrs={"activation": "silu"},
    )  # fmt: skip
    apart = of.bind(
        "gated_mlp", layer="mlp", weights={"gate_up": gate_up, "down": down}, dtypes={"x": "fp32"},
        attrs={"activation": "silu"},
    )  # fmt: skip
    add = of.bind("gated_residual", layer="add", dtypes={"residual": "fp32"}, dims={"D": 8})
    assert torch.equal(site.run(x, residual, gate), add.run(residual, apart.run(x), gate))
    layers = [inner.static["layer"] for inner in site.walk()]
    assert layers == [
        "expert.mlp", "expert.mlp", "expert.mlp.gate_up", "expert.mlp.activation", "expert.mlp.down",
        "expert.mlp.gated_residual",
    ]  # fmt: skip
    new = tensors(1)
    before = apart.run(x)
    site.refresh({"gate_up": new[0].clone(), "down": new[1].clone()})
    assert not torch.equal(apart.run(x), before)  # the same memory


def test_a_quantized_weight_of_an_inner_part_is_lowered_for_it():
    reader = kernel("a.gemm.turned", gemm, layouts=("turned",), band=Band.SPECIALIZED)
    gate_up, down = (quantize_weight(t, INT8) for t in tensors())
    facts = {
        f"parts.gated_mlp.parts.{name}.{fact}": value
        for name, weight in (("gate_up", gate_up), ("down", down)) for fact, value in weight.facts().items()
    }  # fmt: skip
    only_plain = rule("plain", {"layer": "*.down"}, restrict_to=["a.gemm.k"])
    site = Dispatcher(catalog(reader, formats=(TURNED,)), Policy(rules=(only_plain,)), CPU).bind(
        NESTED.name, layer="expert.mlp", weights={"gate_up": gate_up, "down": down}, dtypes={"x": "fp32"},
        attrs={"activation": "silu"}, facts=facts,
    )  # fmt: skip
    assert {name: weight.layout for name, weight in site.weights.items()} == {"gate_up": "turned", "down": "plain"}
    x, residual, gate = torch.randn(4, 8), torch.randn(4, 8), torch.randn(2, 8)
    a, b = (x @ dequantize(gate_up).T).chunk(2, -1)
    want = residual + (torch.nn.functional.silu(a) * b) @ dequantize(down).T * gate.repeat_interleave(2, 0)
    torch.testing.assert_close(site.run(x, residual, gate), want)


def test_a_question_about_its_quantization_is_completed():
    explained = explain_call(NESTED.name, {**ASKED, "quant.weight": "int8"}, catalog(), Policy(), CPU)
    for name in ("gate_up", "down"):
        assert explained.facts[f"parts.gated_mlp.parts.{name}.quant.scheme"] == "w8a16_channel"
    assert explained.parts["gated_mlp"].parts["down"].facts["quant.scheme"] == "w8a16_channel"


def test_a_rule_on_an_inner_part_rules_fusion_out():
    assert decide(FUSED).kernel.id == FUSED.id
    decision = decide(FUSED, rules=[rule("mine", {"op": "gemm"}, restrict_to=["a.gemm.*"])])
    lost = next(one for one in decision.candidates if one.kernel == FUSED.id)
    assert (decision.kernel.id, lost.stage) == (f"decomposed.{NESTED.name}", Stage.PARTS)
    assert "on part gated_mlp.gate_up (restrict_to: a.gemm.*)" in lost.reason


def test_rules_that_name_every_kernel_inside_name_the_chain():
    preferred = decide(FUSED, rules=[rule("a-first", {"role": "expert"}, prefer=("a.*",))])
    restricted = decide(FUSED, rules=[rule("a-only", {"op": NESTED.name}, restrict_to=["a.*"])])
    assert preferred.kernel.id == restricted.kernel.id == f"decomposed.{NESTED.name}"


def test_a_rule_on_a_part_of_a_chained_site_rules_the_larger_kernel_out():
    whole: Op = attrs.evolve(OPS["activation"], name="whole", aliases=(), chained=True, arg_specs=())
    larger = kernel("f.whole.k", activation, band=Band.SPECIALIZED)
    every = Catalog.build([Plugin(PluginStatus("a"), kernels=(*KERNELS, larger))], ops=(*CORE_OPS, whole))
    for rules, want in (((), "f.whole.k"), ((rule("r", {"op": "gemm"}, restrict_to=["a.*"]),), "decomposed.whole")):
        of = Dispatcher(every, Policy(rules=rules), CPU)
        gate_up, down = tensors()
        inner = of.bind(
            NESTED.name, layer="expert.mlp", weights={"gate_up": gate_up, "down": down}, dtypes={"x": "fp32"},
            attrs={"activation": "silu"},
        )  # fmt: skip
        chain = Chain(lambda x, out=None, state=None: x, (inner,))
        site = of.bind("whole", attrs={"activation": "silu"}, dtypes={"x": "fp32"}, dims={"D": 8}, chain=chain)
        assert site.decide(M=4).kernel.id == want


def test_what_is_compiled_ahead_does_not_depend_on_a_condition_that_nothing_reads():
    compiled = attrs.evolve(KERNELS[0], id="c.gemm.k", band=Band.SPECIALIZED, compile=lambda awaited, progress: None)
    of = Dispatcher(catalog(compiled), Policy(), CPU)
    gate_up, down = tensors()
    of.bind(
        NESTED.name, layer="expert.mlp", weights={"gate_up": gate_up, "down": down}, dtypes={"x": "fp32"},
        attrs={"activation": "silu"}, rows=(1, 50),
    )  # fmt: skip
    assert {one.facts["shape.N"] for one in awaited(of)} == {12, 8}


def test_nor_where_a_part_tells_numbers_of_rows_apart():
    few = attrs.evolve(
        KERNELS[0], id="c.gemm.few", band=Band.SPECIALIZED, when=match({"op": "gemm", "shape.M": "<=16"}),
        compile=lambda awaited, progress: None,
    )  # fmt: skip
    of = Dispatcher(catalog(few), Policy(), CPU)
    gate_up, down = tensors()
    of.bind(
        NESTED.name, layer="expert.mlp", weights={"gate_up": gate_up, "down": down}, dtypes={"x": "fp32"},
        attrs={"activation": "silu"}, rows=(1, 50),
    )  # fmt: skip
    assert {one.facts["shape.N"] for one in awaited(of)} == {12, 8}
