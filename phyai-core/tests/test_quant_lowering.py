"""Choosing a weight's layout: exact ones only, by what the policy and the bands say of the kernels under each."""

import attrs
import pytest
from phyai.catalog import Catalog
from phyai.environment import Device, Environment
from phyai.errors import NoKernelError
from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.plugins import Plugin, PluginStatus
from phyai.policy import Layer, Policy, Restriction, Rule
from phyai.predicates import match
from phyai.quant import QuantScheme, TensorQuant
from phyai.quant.formats import QuantFormat
from phyai.quant.lowering import lower

HOST = Environment(Device("cuda"))
W4 = QuantScheme(TensorQuant("int4", "group", group_size=128))
W8 = QuantScheme(TensorQuant("int8", "channel"))


def kernel(id, layouts, band=Band.OPTIMIZED, when=None):
    return Kernel(
        id=id, op="gemm", when=match({"quant.scheme": "*", **(when or {})}), prepare=print, band=band,
        layouts=layouts, capture=Capture.SAFE, numerics=Numerics(reproducible=True),
    )  # fmt: skip


def plugin(name, *kernels, formats=()):
    return Plugin(PluginStatus(name), kernels=kernels, quant_formats=tuple(formats))


def layout(name, when=None):
    return QuantFormat(f"{name}.packed", name, match(when or {"quant.weight": "int4"}), "x:pack", "x:unpack")


REFERENCE = plugin("reference", kernel("reference.gemm.q", ("plain",), Band.REFERENCE))
TILES = plugin("tiles", kernel("tiles.gemm.w4", ("tiles",)), formats=[layout("tiles")])
ROWS = plugin("rows", kernel("rows.gemm.w4", ("rows",), Band.GENERAL), formats=[layout("rows")])
CATALOG = Catalog.build([REFERENCE, TILES, ROWS])


def choose(scheme=W4, policy=None, catalog=CATALOG, rows=(1, 64), **more):
    facts = {"op": "gemm", "layer": "l.0", "dtype.x": "bf16", "dtype.y": "bf16", "shape.N": 256, "shape.K": 256}
    facts |= scheme.facts()
    return lower(facts, catalog=catalog, policy=policy or Policy(), environment=HOST, rows=rows, **more)


def rule(kernels, *, prefer=False, **conditions):
    aspect = {"prefer": kernels} if prefer else {"restriction": Restriction(kernels)}
    return Policy(rules=(Rule(id="r", match=match({"op": "gemm", **conditions}), layer=Layer.USER, **aspect),))


def test_the_best_band_wins():
    choice = choose()
    assert (choice.layout, choice.format.name) == ("tiles", "tiles.packed")
    assert {c.layout: c.objection for c in choice.considered} == {"plain": None, "tiles": None, "rows": None}


def test_the_others_come_in_the_order_of_their_kernels():
    assert [other.layout for other in choose().others()] == ["rows", "plain"]


def test_a_layout_that_does_not_hold_the_scheme_exactly_is_not_considered():
    choice = choose(W8)
    assert [c.layout for c in choice.considered] == ["plain"]
    assert choice.pack("the weight") == "the weight"


def test_a_preference_beats_the_band():
    assert choose(policy=rule(("rows.*",), prefer=True)).layout == "rows"


def test_every_restriction_must_hold():
    choice = choose(policy=rule(("rows.gemm.w4",)))
    assert choice.layout == "rows"
    assert "tiles" in {c.layout for c in choice.considered if c.objection}


def test_the_worst_number_of_rows_counts():
    small = kernel("tiles.gemm.small", ("tiles",), when={"shape.M": "<=16"})
    big = kernel("tiles.gemm.big", ("tiles",), Band.REFERENCE, when={"shape.M": ">16"})
    catalog = Catalog.build([REFERENCE, plugin("tiles", small, big, formats=[layout("tiles")]), ROWS])
    assert choose(catalog=catalog).layout == "rows"


def test_the_band_of_each_number_of_rows_counts():
    few = attrs.evolve(ROWS.kernels[0], bands={Band.SPECIALIZED: match({"shape.M": "<=16"})})
    catalog = Catalog.build([REFERENCE, TILES, plugin("rows", few, formats=[layout("rows")])])
    assert choose(catalog=catalog, rows=(1, 16)).layout == "rows"
    assert choose(catalog=catalog, rows=(1, 64)).layout == "tiles"  # the other is general at 64


def test_a_layout_without_a_kernel_for_some_rows_is_not_taken():
    small = kernel("tiles.gemm.small", ("tiles",), when={"shape.M": "<=16"})
    catalog = Catalog.build([REFERENCE, plugin("tiles", small, formats=[layout("tiles")])])
    choice = choose(catalog=catalog)
    assert choice.layout == "plain"
    assert "M=64" in next(c.objection for c in choice.considered if c.layout == "tiles")


def test_a_rule_on_a_layout_applies_under_it_only():
    policy = rule(("tiles.gemm.w4",), **{"quant.layout": "tiles"})
    assert choose(policy=policy).layout == "tiles"


def test_a_layout_can_be_forced():
    choice = choose(forced="rows")
    assert choice.layout == "rows"
    assert "forced" in choice.why


@pytest.mark.parametrize(
    ("scheme", "forced", "words"), [(W8, "tiles", "does not hold w8a16_channel exactly"), (W4, "tyles", "no backend")]
)
def test_what_cannot_be_forced_is_refused(scheme, forced, words):
    with pytest.raises(NoKernelError, match=words):
        choose(scheme, forced=forced)


def test_no_layout_at_all_says_why_of_each():
    catalog = Catalog.build([plugin("tiles", kernel("tiles.gemm.x", ("tiles",), when={"shape.K": "%1024"}))])
    with pytest.raises(NoKernelError, match=r"l\.0: no layout .*\n  plain: M=1"):
        choose(catalog=catalog)


def test_no_layout_says_why_the_kernels_that_a_rule_allows_cannot_run():
    elsewhere = kernel("tiles.gemm.w4", ("tiles",), when={"device.arch": "sm90", "shape.K": "%1024"})
    catalog = Catalog.build([REFERENCE, plugin("tiles", elsewhere, formats=[layout("tiles")])])
    with pytest.raises(NoKernelError) as caught:
        choose(policy=rule(("tiles.gemm.w4",), **{"quant.layout": "tiles"}), catalog=catalog, forced="tiles")
    (_, line) = str(caught.value).splitlines()
    assert "(restrict_to: tiles.gemm.w4) leaves no kernel" in line
    assert line.endswith("(tiles.gemm.w4: device.arch is absent (needs sm90); shape.K=256 is not a multiple of 1024)")


def test_the_choice_is_plain_data():
    data = choose().to_json()
    assert data["layout"] == "tiles"
    assert data["considered"][-1] == {
        "layout": "plain", "kernels": {"1": "reference.gemm.q", "64": "reference.gemm.q"}, "objection": None,
    }  # fmt: skip
