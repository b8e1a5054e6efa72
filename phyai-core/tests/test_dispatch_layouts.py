"""How a site's quantized weights come to lie as they do: chosen when it is bound, packed once, explained."""

import attrs
import pytest
from phyai.catalog import Catalog
from phyai.dispatch import Dispatcher
from phyai.environment import Device, Environment
from phyai.errors import CallError, NeedsReload, NoKernelError
from phyai.explain import explain_call, to_text
from phyai.kernel import Band, Capture, Kernel, Numerics, Prepared
from phyai.plugins import Plugin, PluginStatus
from phyai.policy import Layer, Policy, Restriction, Rule
from phyai.predicates import match
from phyai.quant import QuantScheme, TensorQuant
from phyai.quant.formats import QuantFormat

torch = pytest.importorskip("torch")

from phyai.quant.realize import dequantize, quantize_weight  # noqa: E402

W8 = QuantScheme(TensorQuant("int8", "channel"))


def pack(weight):
    return attrs.evolve(weight, codes=None, layout="turned", packed={"turned": weight.codes.t().contiguous()})


def unpack(weight):
    codes = weight.packed["turned"].t().contiguous()
    return attrs.evolve(weight, codes=codes, layout="plain", packed={})


def prepare(facts, weights, params, resources):
    weight = weights["weight"]

    def run(x, out=None, state=None):
        plain = unpack(weight) if weight.layout == "turned" else weight
        return x @ dequantize(plain).T

    def refresh(new):
        for name, tensor in weight.tensors().items():
            tensor.copy_(new["weight"].tensors()[name])

    return Prepared(run, refresh=refresh)


def elementwise(facts, weights, params, resources):
    return Prepared(lambda x, out=None, state=None: x[..., : x.shape[-1] // 2] * x[..., x.shape[-1] // 2 :])


def kernel(id, layouts=("plain",), band=Band.OPTIMIZED, when=None, op="gemm", make=prepare):
    return Kernel(
        id=id, op=op, when=match(when or {}), prepare=make, band=band, layouts=layouts,
        capture=Capture.SAFE, numerics=Numerics(reproducible=True),
    )  # fmt: skip


TURNED = QuantFormat("tiles.turned", "turned", match({"quant.weight": "int8", "shape.N": "%2"}), pack, unpack)
REFERENCE = Plugin(
    PluginStatus("reference"),
    kernels=(
        kernel("reference.gemm.q", band=Band.REFERENCE),
        kernel("reference.gated_activation.q", band=Band.REFERENCE, op="gated_activation", make=elementwise),
    ),
)
TILES = Plugin(PluginStatus("tiles"), kernels=(kernel("tiles.gemm.w8", ("turned",)),), quant_formats=(TURNED,))
CATALOG = Catalog.build([REFERENCE, TILES])


def dispatcher(*rules, catalog=CATALOG):
    return Dispatcher(catalog, Policy(rules=rules), Environment(Device("cpu")))


def rule(kernels, id="r", **conditions):
    return Rule(id=id, match=match({"op": "gemm", **conditions}), layer=Layer.USER, restriction=Restriction(kernels))


def weight(n=6, k=8, seed=0):
    return quantize_weight(torch.randn(n, k, generator=torch.Generator().manual_seed(seed)), W8)


def bind(of, given=None, layer="l.0", **more):
    given = weight() if given is None else given
    return of.bind("gemm", layer=layer, weights={"weight": given}, facts=given.facts(), dtypes={"x": "fp32"}, **more)


def test_the_weight_is_packed_once_and_the_call_is_decided_under_its_layout():
    site = bind(dispatcher())
    assert site.weights["weight"].layout == "turned"
    assert site.weights["weight"].codes is None
    assert site.static["quant.layout"] == "turned"
    assert site.decide(M=3).kernel.id == "tiles.gemm.w8"
    x = torch.randn(3, 8)
    assert torch.equal(site.run(x), x @ dequantize(weight()).T)


def test_a_layout_that_does_not_hold_the_weight_is_left_out():
    site = bind(dispatcher(), weight(n=5))
    assert site.weights["weight"].layout == "plain"
    assert [c.layout for c in site.lowering.choices["weight"].considered] == ["plain"]


def test_every_set_of_rows_that_a_rule_tells_apart_is_looked_at():
    # rows above 100 may only run on the plain layout, so the weight must lie so
    site = bind(dispatcher(rule(("reference.*",), **{"shape.M": ">100"})))
    assert site.weights["weight"].layout == "plain"
    turned = next(c for c in site.lowering.choices["weight"].considered if c.layout == "turned")
    assert "M=101" in turned.objection


def test_rows_that_never_come_do_not_count():
    site = bind(dispatcher(rule(("reference.*",), **{"shape.M": ">100"})), rows=(1, 100))
    assert site.weights["weight"].layout == "turned"


def test_a_fixed_number_of_rows_is_the_only_one():
    site = bind(dispatcher(rule(("reference.*",), **{"shape.M": ">100"})), dims={"M": 50})
    assert site.weights["weight"].layout == "turned"
    assert set(site.lowering.choices["weight"].considered[0].kernels) == {50}


def test_rules_on_one_layer_reach_that_layer_only():
    of = dispatcher(rule(("reference.*",), layer="l.1"))
    assert [bind(of, layer=f"l.{i}").weights["weight"].layout for i in range(3)] == ["turned", "plain", "turned"]


def test_a_layout_can_be_forced():
    assert bind(dispatcher(), layouts={"weight": "plain"}).weights["weight"].layout == "plain"
    with pytest.raises(NoKernelError, match=r"does not hold w8a16_channel exactly: shape\.N=5"):
        bind(dispatcher(), weight(n=5), layouts={"weight": "turned"})


def test_only_quantized_weights_can_be_forced():
    with pytest.raises(CallError, match="weight bias, which is no quantized weight"):
        bind(dispatcher(), layouts={"bias": "turned"})


def test_a_packed_weight_stays_as_it_is():
    site = bind(dispatcher(rule(("reference.*",))), pack(weight()))
    assert site.weights["weight"].layout == "turned"
    assert not site.lowering.choices


def test_new_weights_are_given_plain_and_packed_in_place():
    site = bind(dispatcher())
    x = torch.randn(3, 8)
    site.run(x)
    held = site.weights["weight"].packed["turned"]
    site.refresh({"weight": weight(seed=1)})
    assert site.weights["weight"].packed["turned"] is held
    assert torch.equal(site.run(x), x @ dequantize(weight(seed=1)).T)


def mlp(of, **more):
    gate_up, down = weight(12, 8), weight(8, 6, seed=2)
    facts = {f"parts.{n}.{f}": v for n, w in (("gate_up", gate_up), ("down", down)) for f, v in w.facts().items()}
    return of.bind(
        "gated_mlp", layer="mlp", weights={"gate_up": gate_up, "down": down}, facts=facts, dtypes={"x": "fp32"},
        attrs={"activation": "silu"}, **more,
    )  # fmt: skip


def test_the_weights_of_a_composite_are_lowered_as_its_parts():
    site = mlp(dispatcher(rule(("reference.*",), layer="mlp.down")))
    assert {name: w.layout for name, w in site.weights.items()} == {"gate_up": "turned", "down": "plain"}
    assert site.decide(M=3).parts["gate_up"].kernel.id == "tiles.gemm.w8"
    assert site.run(torch.randn(3, 8)).shape == (3, 8)


def test_a_restriction_on_a_composite_decides_about_its_weights_too():
    fused = kernel(
        "fused.gated_mlp",
        op="gated_mlp",
        band=Band.SPECIALIZED,
        make=elementwise,
        when={"parts.gate_up.quant.layout": "plain"},
    )
    catalog = Catalog.build([REFERENCE, TILES, Plugin(PluginStatus("fused"), kernels=(fused,))])
    only = Rule(
        id="fused", match=match({"op": "gated_mlp"}), layer=Layer.USER, restriction=Restriction(("fused.gated_mlp",))
    )
    site = mlp(dispatcher(only, catalog=catalog))
    assert site.weights["gate_up"].layout == "plain"
    assert site.decide(M=3).kernel.id == "fused.gated_mlp"


def test_weights_of_a_part_of_a_part_are_lowered_as_the_calls_that_read_them():
    norm = kernel("reference.rms_norm_add.q", band=Band.REFERENCE, op="rms_norm_add")
    catalog = Catalog.build([attrs.evolve(REFERENCE, kernels=(*REFERENCE.kernels, norm)), TILES])
    gate_up, down = weight(12, 8), weight(8, 6, seed=2)
    quant = {
        f"parts.block.parts.{n}.{f}": v for n, w in (("gate_up", gate_up), ("down", down)) for f, v in w.facts().items()
    }
    site = dispatcher(rule(("reference.*",), layer="mlp.down"), catalog=catalog).bind(
        "rms_norm_add_gated_mlp", layer="mlp", facts={**quant, "parts.block.layer": "mlp"}, dtypes={"x": "fp32"},
        weights={"norm_weight": torch.ones(8), "gate_up": gate_up, "down": down}, attrs={"activation": "silu"},
    )  # fmt: skip
    assert [site.weights[name].layout for name in ("gate_up", "down")] == ["turned", "plain"]
    decision = site.decide(M=3)
    assert decision.parts["block"].parts["gate_up"].kernel.id == "tiles.gemm.w8"
    asked = {f"parts.block.parts.gate_up.{name}": value for name, value in W8.facts().items()}
    explained = explain_call(
        "rms_norm_add_gated_mlp", {**asked, "dtype.x": "fp32"}, catalog, Policy(), Environment(Device("cpu"))
    )
    assert "part block.gate_up: layout turned" in to_text(explained)


def test_a_composite_that_calls_its_rows_otherwise_is_lowered_for_them():
    few = kernel("tiles.gemm.few", ("turned",), when={"shape.M": "<=64"})
    tiles = Plugin(PluginStatus("tiles"), kernels=(few,), quant_formats=(TURNED,))
    others = [kernel(f"reference.{op}.q", band=Band.REFERENCE, op=op) for op in ("rope", "kv_write")]
    catalog = Catalog.build([attrs.evolve(REFERENCE, kernels=(*REFERENCE.kernels, *others)), tiles])
    held = weight(n=32)
    site = dispatcher(catalog=catalog).bind(
        "qkv_rope_kv_write", layer="l", weights={"weight": held, "cos_sin": torch.zeros(4, 8)}, rows=(1, 50),
        facts={f"parts.qkv.{name}": value for name, value in held.facts().items()}, dtypes={"x": "fp32"},
        attrs={"heads": 2, "kv_heads": 1, "head_dim": 8},
    )  # fmt: skip
    assert site.weights["weight"].layout == "turned"


def test_a_policy_that_wants_another_layout_needs_the_model_loaded_again():
    of = dispatcher()
    site = bind(of)
    site.decide(M=3)
    with pytest.raises(NeedsReload, match=r"another layout at l\.0:gemm"):
        of.replace_policy(Policy(rules=(rule(("reference.*",)),)))
    assert of.policy == Policy(rules=())
    of.replace_policy(Policy(rules=(rule(("tiles.*",)),)))  # the same layout: nothing to load
    assert site.decide(M=3).kernel.id == "tiles.gemm.w8"


def test_the_report_says_how_weights_lie_and_why():
    of = dispatcher()
    bind(of)
    choice = of.report().to_json()["sites"][0]["layouts"]["weight"]
    assert choice["layout"] == "turned"
    assert {c["layout"]: set(c["kernels"].values()) for c in choice["considered"]} == {
        "plain": {"reference.gemm.q"}, "turned": {"tiles.gemm.w8"},
    }  # fmt: skip
    text = of.report().sites[0].layouts["weight"].to_text()
    assert text.splitlines() == [
        "layout turned: its kernels (tiles.gemm.w8) come first",
        "  turned: M=1 tiles.gemm.w8",
        "  plain: M=1 reference.gemm.q",
    ]


ASKED = {
    "shape.M": 3, "shape.K": 8, "shape.I": 6, "shape.N": 8, "dtype.x": "fp32", "attrs.activation": "silu",
    "mode.capture": False,
}  # fmt: skip
INT8 = {"quant.weight": "int8", "quant.granularity": "channel"}
BOTH = {f"parts.{part}.{name}": value for part in ("gate_up", "down") for name, value in INT8.items()}


@pytest.mark.parametrize("said", [INT8, BOTH], ids=["of all weights", "of each part"])
def test_explaining_a_quantized_composite_answers_as_a_site_of_a_model_decides(said):
    of = dispatcher(rule(("reference.*",), layer="mlp.down"))
    decided = mlp(of).decide(M=3)
    explained = explain_call("gated_mlp", {**ASKED, **said, "layer": "mlp"}, CATALOG, of.policy, of.environment)
    assert explained.facts == decided.facts
    assert explained.kernel == decided.kernel
    assert {name: part.kernel.id for name, part in explained.parts.items()} == {
        "gate_up": "tiles.gemm.w8", "activation": "reference.gated_activation.q", "down": "reference.gemm.q",
    }  # fmt: skip
    assert "part down: layout plain: the only layout" in to_text(explained, width=400)


def test_of_two_weights_one_can_be_explained_quantized():
    of = dispatcher()
    explained = explain_call(
        "gated_mlp", {**ASKED, "parts.down.quant.weight": "int8"}, CATALOG, of.policy, of.environment
    )
    assert explained.facts["dtype.gate_up"] == "fp32"
    assert "parts.gate_up.quant.scheme" not in explained.facts
    assert explained.parts["down"].facts["quant.scheme"] == "w8a16_channel"
    assert explained.parts["down"].kernel.id == "tiles.gemm.w8"


def test_what_is_said_of_one_part_stands_before_what_is_said_of_all():
    of = dispatcher()
    said = {**INT8, "parts.gate_up.quant.weight": None}
    explained = explain_call("gated_mlp", {**ASKED, **said}, CATALOG, of.policy, of.environment)
    assert "quant.scheme" not in explained.parts["gate_up"].facts
    assert explained.parts["down"].facts["quant.scheme"] == "w8a16_channel"


def test_an_op_whose_weights_are_never_quantized_is_not_explained_so():
    of = dispatcher()
    with pytest.raises(
        CallError, match=r"no weight of layer_norm_add can be quantized, so its calls have no quant\.weight"
    ):
        explain_call("layer_norm_add", {"quant.weight": "int8"}, CATALOG, of.policy, of.environment)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"quant.scheme": "w8a16_channel"}, r"parts\.gate_up\.quant\.\* describe no scheme"),
        ({"parts.down.quant.activation": "int8"}, r"parts\.down\.quant\.weight=int4"),
    ],
)
def test_a_question_that_says_of_a_weight_everything_but_its_type_is_refused(said, words):
    of = dispatcher()
    with pytest.raises(CallError, match=words):
        explain_call("gated_mlp", {**ASKED, **said}, CATALOG, of.policy, of.environment)


def test_a_scheme_that_is_named_beside_its_type_is_completed():
    of = dispatcher()
    for said in ({"quant.weight": "int8"}, {"quant.weight": "int8", "quant.scheme": "w8a16_channel"}):
        explained = explain_call("gated_mlp", {**ASKED, **said}, CATALOG, of.policy, of.environment)
        assert explained.facts["parts.down.quant.granularity"] == "channel"
