"""The catalog: look-ups, aliases, vocabularies, and what it refuses to be built from."""

from __future__ import annotations

import attrs
import pytest
from phyai.catalog import Catalog, merge_vocabularies, op_vocabulary
from phyai.environment import Library
from phyai.errors import DeclarationError
from phyai.facts import FactKind, FactSpec
from phyai.kernel import Capture, Kernel, Numerics
from phyai.op import Attr, Dim, Op, Part, Tensor
from phyai.plugins import Plugin, PluginState, PluginStatus
from phyai.predicates import match


def op(name: str, *, aliases: tuple[str, ...] = (), **more) -> Op:
    tensors = (Tensor("x", ("...M", "D")), Tensor("y", ("...M", "D"), "output"))
    dims = (Dim("M", "rows", dynamic=True), Dim("D", "columns"))
    return Op(name, "y = x", tensors, dims, aliases=aliases, **more)


def kernel(id: str, **more) -> Kernel:
    fields = {"op": id.split(".")[1], "when": match({}), "prepare": print, "capture": Capture.SAFE}
    return Kernel(id=id, numerics=Numerics(reproducible=True), **{**fields, **more})


def plugin(name: str, *kernels: Kernel, **more) -> Plugin:
    return Plugin(PluginStatus(name, distribution=f"dist-{name}", version="1.0"), kernels=kernels, **more)


NORM = op("norm", aliases=("normalize", "normalise"))
SCALE = op("scale")


def test_kernels_are_sorted_by_id_whatever_the_order_of_plugins():
    plugins = [plugin("b", kernel("b.norm")), plugin("a", kernel("a.norm.z"), kernel("a.norm.y"))]
    ids = [[k.id for k in Catalog.build(order, ops=[NORM]).kernels] for order in (plugins, plugins[::-1])]
    assert ids == [["a.norm.y", "a.norm.z", "b.norm"]] * 2


def test_look_ups_take_aliases_also_inside_ids_and_globs():
    catalog = Catalog.build([plugin("a", kernel("a.norm.fast"))], ops=[NORM, SCALE])
    assert catalog.op("normalise") is NORM
    assert catalog.kernel("a.normalize.fast").id == "a.norm.fast"
    assert catalog.canonical_id("*.normalize.*") == "*.norm.*"
    assert catalog.kernels_of("normalize") == (catalog.kernel("a.norm.fast"),)
    assert catalog.kernels_of("scale") == ()
    assert catalog.aliases == {"norm": "norm", "normalize": "norm", "normalise": "norm", "scale": "scale"}


def test_unknown_names_suggest_the_nearest():
    catalog = Catalog.build([plugin("a", kernel("a.norm.fast"))], ops=[NORM])
    with pytest.raises(DeclarationError, match="did you mean `norm`"):
        catalog.op("nrom")
    with pytest.raises(DeclarationError, match=r"did you mean `a\.norm\.fast`"):
        catalog.kernel("a.norm.fats")


def test_owner_is_the_plugin_that_declares_the_kernel():
    catalog = Catalog.build([plugin("a", kernel("x.norm")), plugin("b", kernel("b.norm"))], ops=[NORM])
    assert catalog.owner("x.norm").distribution == "dist-a"
    assert catalog.owner("nobody.norm") is None


def test_a_catalog_cannot_be_changed():
    catalog = Catalog.build([plugin("a", kernel("a.norm"))], ops=[NORM])
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        catalog.kernels = ()
    with pytest.raises(TypeError):
        catalog.aliases["x"] = "norm"
    with pytest.raises(TypeError):
        catalog.refused["x"] = "norm"


def test_building_directly_refuses_what_discovery_would_only_report():
    wrong = plugin("a", kernel("a.nothing"))
    with pytest.raises(DeclarationError, match="unknown op 'nothing'"):
        Catalog.build([wrong], ops=[NORM])
    tolerant = Catalog.build([wrong], ops=[NORM], tolerant=True)
    assert tolerant.plugins[0].state is PluginState.INVALID


def test_every_combination_of_clashes_leaves_exactly_the_unclaimed_ids():
    names = ("a", "b", "c")
    for mask in range(1, 2**9):  # which of three plug-ins claims which of three ids
        claims = {n: [f"s.norm.k{i}" for i in range(3) if mask >> (3 * p + i) & 1] for p, n in enumerate(names)}
        plugins = [plugin(n, *map(kernel, ids)) for n, ids in claims.items()]
        catalog = Catalog.build(plugins, ops=[NORM], tolerant=True)
        counts = {i: sum(i in ids for ids in claims.values()) for i in (f"s.norm.k{j}" for j in range(3))}
        assert {k.id for k in catalog.kernels} == {i for i, count in counts.items() if count == 1}
        assert set(catalog.refused) == {i for i, count in counts.items() if count > 1}
        for status in catalog.plugins:
            clashes = any(counts[i] > 1 for i in claims[status.name])
            assert (status.state is PluginState.CONFLICT) == clashes


def test_vocabulary_of_an_op_has_its_own_facts_and_its_parts():
    composite = op("both", parts=(Part("first", "norm"),), compose="m:f")
    vocabulary = op_vocabulary(composite)
    assert vocabulary.find("shape.M").dynamic
    assert not vocabulary.find("shape.D").dynamic
    assert vocabulary.find("parts.first.quant.group_size").kind is FactKind.NUMBER
    assert vocabulary.find("parts.second.quant.group_size") is None


def test_merged_vocabulary_allows_what_any_op_allows():
    left = op("left", attributes=(Attr("kind", FactKind.NAME, "a", "", ("a", "b")),))
    right = op("right", attributes=(Attr("kind", FactKind.NAME, "c", "", ("c",)),))
    assert merge_vocabularies([left, right]).find("attrs.kind").values == ("a", "b", "c")
    assert op_vocabulary(left).find("attrs.kind").values == ("a", "b")


def test_merged_vocabulary_is_dynamic_where_any_op_is():
    fixed = Op("fixed", "", (Tensor("x", ("M",)),), (Dim("M", "", minimum=4),))
    merged = merge_vocabularies([fixed, NORM]).find("shape.M")
    assert merged.dynamic
    assert merged.minimum == 1


def test_two_ops_cannot_give_one_fact_different_kinds():
    number = op("left", extra_facts=(FactSpec("attrs.odd", FactKind.NUMBER, ""),))
    name = op("right", extra_facts=(FactSpec("attrs.odd", FactKind.NAME, ""),))
    with pytest.raises(DeclarationError, match=r"left and right declare the fact attrs\.odd"):
        merge_vocabularies([number, name])


def test_libraries_are_torch_and_what_plugins_declare():
    library = Library("fast", ("fast-lib",), "1.0")
    catalog = Catalog.build(
        [plugin("a", kernel("a.norm", when=match({"lib.fast": ">=1"})), libraries=(library,))], ops=[NORM]
    )
    assert {lib.name for lib in catalog.libraries} == {"torch", "fast"}


def test_what_two_plugins_declare_of_one_library_is_put_together_whatever_their_order():
    one = plugin("a", libraries=(Library("fast", ("fast-lib",), "1.9"),))
    two = plugin("b", libraries=(Library("fast", ("fast-lib-cu12", "fast-lib"), "1.10"),))
    for order in ((one, two), (two, one)):
        (merged,) = (lib for lib in Catalog.build(order, ops=[NORM]).libraries if lib.name == "fast")
        assert set(merged.distributions) == {"fast-lib", "fast-lib-cu12"}
        assert merged.assumed == "1.10"


def test_unknown_model_lists_those_installed_and_broken_plugins():
    broken = Plugin(
        PluginStatus("vla", "phyai.models", "phyai-vla", "1.0", PluginState.IMPORT_ERROR, "ImportError: no safetensors")
    )
    catalog = Catalog.build([broken], ops=[NORM])
    with pytest.raises(DeclarationError, match="no safetensors"):
        catalog.model("pi05")


def test_the_core_ops_build_one_vocabulary():
    catalog = Catalog.build()
    assert catalog.op("layernorm").name == "layer_norm"
    assert catalog.vocabulary.find("shape.M").dynamic
