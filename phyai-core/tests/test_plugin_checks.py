"""What a plug-in declares is checked before any of it is registered, and an id that two claim is refused to both."""

from __future__ import annotations

from pathlib import Path

import pytest
from phyai.catalog import Catalog
from phyai.errors import DeclarationError
from phyai.plugins import PluginState, discover
from plugin_sites import assert_refused, found, kernels_hook, write_distribution, write_plugin


def bad_kernel(site: Path, call: str) -> Catalog:
    write_plugin(site, "bad_plugin", kernels_hook("kernel('bad.rms_norm', op='rms_norm')", call))
    write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"})
    return discover(env={})


def raised(band: str, condition: dict[str, object]) -> str:
    """A kernel, as source, that is in another band under a condition."""
    bands = f"{{__import__('phyai.kernel').kernel.Band.{band}: __import__('phyai').predicates.match({condition})}}"
    return f"kernel('bad.layer_norm', bands={bands})"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("kernel('bad.levitate', op='levitate')", ("unknown op 'levitate'",)),
        ("kernel('bad.layernorm', op='layernorm')", ("alias", "layer_norm")),
        ("kernel('bad.layer_norm', when={'shape.DD': 3})", ("shape.DD",)),
        ("kernel('bad.layer_norm', when={'device.arhc': 'sm90'})", ("device.arhc", "device.arch")),
        ("kernel('bad.activation', op='activation', when={'attrs.activation': 'mish'})", ("mish", "silu")),
        ("kernel('bad.layer_norm', when={'lib.nobody': '>=1'})", ("lib.nobody", "phyai_libraries")),
        ("kernel('bad.layer_norm', specializes_on=('shape.Q',))", ("shape.Q", "specializes_on")),
        ("kernel('bad.layer_norm', specializes_on=('dtype.x',))", ("dtype.x", "static")),
        (raised("OPTIMIZED", {"shape.DD": 3}), ("bands.optimized", "shape.DD")),
        (raised("OPTIMIZED", {"params.split": 1}), ("bands.optimized", "params.split")),
        (raised("OPTIMIZED", {"lib.nobody": ">=1"}), ("bands.optimized", "lib.nobody", "phyai_libraries")),
        (raised("GENERAL", {"shape.M": 1}), ("general", "not above its band general")),
        ("kernel('bad.gemm', op='layer_norm')", ("<backend>.layer_norm",)),
        ("kernel('decomposed.layer_norm')", ("decomposed",)),
        ("kernel('bad.layer_norm', layouts=())", ("layouts",)),
        ("'bad.layer_norm'", ("Kernel",)),
        ("__import__('attrs').evolve(kernel('bad.layer_norm'), prepare='bad_plugin')", ("module:function",)),
        ("__import__('attrs').evolve(kernel('bad.layer_norm'), prepare='bad_plugin.gone:f')", ("bad_plugin.gone",)),
        (
            "kernel('bad.layer_norm', params=(__import__('phyai.kernel').kernel.Param('n', '', (1, 2), 3),))",
            ("default 3",),
        ),
        ("kernel('bad.rms_norm', op='rms_norm')", ("declared twice", "bad.rms_norm")),
    ],
)
def test_a_declaration_that_cannot_be_true_refuses_the_plugin(site, call, words):
    assert_refused(bad_kernel(site, call), "bad", PluginState.INVALID, "phyai-backend-bad", *words)


def test_an_op_that_takes_a_name_of_the_core_is_refused(site):
    write_plugin(
        site,
        "bad_plugin",
        """
        from phyai.op import Op
        @hookimpl
        def phyai_ops():
            return [Op("mine", "", (), (), aliases=("layernorm",))]
        """,
    )
    write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"})
    catalog = discover(env={})
    assert_refused(catalog, "bad", PluginState.INVALID, "'layernorm' belongs to the op layer_norm of phyai-core")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("(X, Y), (Dim('M', ''),)", ("tensor x has the dimension D",)),
        ("(Tensor('x', ('2M',)),), (Dim('M', ''),)", ("dimension '2M' must read",)),
        ("(X, X), (M, D)", ("tensor x is declared twice",)),
        ("(Tensor('x', ('M',), 'inptu'),), (M,)", ("'inptu'", "metadata")),
        ("(Tensor('x', ('M',), scratch='op_plugin'),), (M,)", ("tensor x: scratch", "module:function")),
        ("(Tensor('x', ('M',), 'weight', scratch='op_plugin:f'),), (M,)", ("only an input",)),
        ("(X, Y), (M, D), arg_specs=(ArgSpec('s', {'Q': 3}),)", ("argument spec s", "no dimension 'Q'")),
        ("(X, Y), (M, D), arg_specs=(ArgSpec('s', {}, {'x': 'int8'}),)", ("x is given as int8",)),
        ("(X, Y), (M, D), parts=(Part('p', 'gemm'),)", ("parts and compose go together",)),
        ("(X, Y), (M, D), compose='op_plugin:prepare'", ("parts and compose go together",)),
        ("(X, Y), (M, D), parts=(Part('p', 'gmm'),), compose='op_plugin:prepare'", ("unknown op 'gmm'",)),
        (
            "(X, Y), (M, D), parts=(Part('p', 'gemm', {'weight': 'w'}),), compose='op_plugin:prepare'",
            ("part p", "no weight 'w'"),
        ),
        ("(X, Y), (M, D), parts=(Part('p', 'gemm'),), compose='gone_module:f'", ("no module gone_module",)),
        ("(X, Y), (M, D), synthesize='op_plugin'", ("module:function",)),
        ("(X, Y), (M, D), extra_facts=(FactSpec('device.arch', FactKind.NUMBER, ''),)", ("different kinds",)),
        ("None, 7", ("TypeError",)),
        ("(1, 2), (M, D)", ("cannot be read",)),
    ],
)
def test_an_op_whose_signature_cannot_be_true_refuses_the_plugin(site, fields, words):
    write_plugin(
        site,
        "op_plugin",
        f"""
        from phyai.facts import FactKind, FactSpec
        from phyai.op import ArgSpec, Dim, Op, Part, Tensor
        M, D = Dim("M", "rows", True), Dim("D", "")
        X, Y = Tensor("x", ("...M", "D")), Tensor("y", ("...M", "D"), "output")
        @hookimpl
        def phyai_ops():
            return [Op("mine", "y = x", {fields})]
        """,
    )
    write_distribution(site, "phyai-backend-bad", {"bad": "op_plugin"})
    catalog = discover(env={})
    assert_refused(catalog, "bad", PluginState.INVALID, *words)
    assert "mine" not in catalog.aliases


def test_a_command_of_the_core_or_without_a_module_is_refused(site):
    hook = "from phyai.plugins import Command\n@hookimpl\ndef phyai_commands():\n    return [Command({}, 'x', {})]"
    write_plugin(site, "one_plugin", hook.format("'explain'", "'one_plugin'"))
    write_plugin(site, "two_plugin", hook.format("'fly'", "'two_plugin.gone'"))
    write_distribution(site, "one", {"one": "one_plugin"})
    write_distribution(site, "two", {"two": "two_plugin"})
    catalog = discover(env={})
    assert_refused(catalog, "one", PluginState.INVALID, "'explain' is phyai-core's own")
    assert_refused(catalog, "two", PluginState.INVALID, "no module two_plugin.gone")


def test_the_cores_own_ops_pass_the_checks_of_a_plugins():
    from phyai.ops import CORE_OPS
    from phyai.plugins.checking import module_exists
    from phyai.plugins.op_checks import op_problems

    ops = {op.name: op for op in CORE_OPS}
    assert [(op.name, problem) for op in CORE_OPS for problem in op_problems(op, ops, module_exists)] == []


def test_kernels_for_an_op_of_a_refused_plugin_are_refused_too(site):
    write_plugin(
        site,
        "owner_plugin",
        """
        from phyai.op import Op
        @hookimpl
        def phyai_ops():
            return [Op("theirs", "", (), ())]
        @hookimpl
        def phyai_kernels():
            return [kernel("owner.nothing", op="nothing")]
        """,
    )
    write_plugin(site, "user_plugin", kernels_hook("kernel('user.theirs', op='theirs')"))
    write_distribution(site, "owner", {"owner": "owner_plugin"})
    write_distribution(site, "user", {"user": "user_plugin"})
    catalog = discover(env={})
    assert_refused(catalog, "owner", PluginState.INVALID, "unknown op 'nothing'")
    assert_refused(catalog, "user", PluginState.INVALID, "unknown op 'theirs'")


def test_an_id_that_two_plugins_claim_is_refused_to_both_and_both_rows_name_both(site):
    write_plugin(
        site, "one_plugin", kernels_hook("kernel('shared.layer_norm.fast')", "kernel('one.rms_norm', op='rms_norm')")
    )
    write_plugin(site, "two_plugin", kernels_hook("kernel('shared.layer_norm.fast')"))
    write_distribution(site, "dist-one", {"one": "one_plugin"})
    write_distribution(site, "dist-two", {"two": "two_plugin"})
    catalog = discover(env={})
    for name, other in (("one", "two"), ("two", "one")):
        status = found(catalog, name)
        assert status.state is PluginState.CONFLICT
        assert "dist-one" in status.reason
        assert "dist-two" in status.reason
        assert f"PHYAI_DISABLE_PLUGINS={other}" in status.advice
    assert not catalog.has_kernel("shared.layer_norm.fast")
    assert catalog.kernel("one.rms_norm").id == "one.rms_norm"  # what nobody else claims stays
    with pytest.raises(DeclarationError, match=r"dist-one and by dist-two"):
        catalog.kernel("shared.layernorm.fast")


FORMAT = """
from phyai.quant.formats import QuantFormat
from phyai.predicates import TRUE

@hookimpl
def phyai_quant_formats():
    return [QuantFormat(name, layout, TRUE, print, print) for name, layout in {}]
"""


@pytest.mark.parametrize(
    ("one", "two", "words"),
    [
        ([("same.rows", "one_rows")], [("same.rows", "two_rows")], "quant format same.rows is claimed by"),
        ([("one.rows", "rows")], [("two.rows", "rows")], "layout rows is claimed by"),
    ],
)
def test_a_format_or_a_layout_that_two_plugins_claim_is_refused_to_both(site, one, two, words):
    write_plugin(site, "one_plugin", FORMAT.format([*one, ("one.columns", "one_columns")]))
    write_plugin(site, "two_plugin", FORMAT.format(two))
    write_distribution(site, "dist-one", {"one": "one_plugin"})
    write_distribution(site, "dist-two", {"two": "two_plugin"})
    catalog = discover(env={})
    for name in ("one", "two"):
        assert found(catalog, name).state is PluginState.CONFLICT
        assert f"{words} dist-one and by dist-two" in found(catalog, name).reason
    names = [record.name for record in catalog.quant_formats]
    assert "one.columns" in names  # what nobody else claims stays
    assert not {name for name, _ in (*one, *two)} & set(names)


def test_one_plugin_may_have_several_formats_of_one_layout(site):
    write_plugin(site, "one_plugin", FORMAT.format([("one.int4", "one_rows"), ("one.int8", "one_rows")]))
    write_distribution(site, "dist-one", {"one": "one_plugin"})
    catalog = discover(env={})
    assert found(catalog, "one").state is PluginState.READY
    assert {"one.int4", "one.int8"} <= {record.name for record in catalog.quant_formats}


def test_disabling_one_of_two_that_clash_gives_the_id_to_the_other(site):
    write_plugin(site, "one_plugin", kernels_hook("kernel('shared.layer_norm')"))
    write_plugin(site, "two_plugin", kernels_hook("kernel('shared.layer_norm')"))
    write_distribution(site, "dist-one", {"one": "one_plugin"})
    write_distribution(site, "dist-two", {"two": "two_plugin"})
    catalog = discover(env={"PHYAI_DISABLE_PLUGINS": "two"})
    assert catalog.owner("shared.layer_norm") == found(catalog, "one")
    assert found(catalog, "one").state is PluginState.READY
    assert found(catalog, "two").state is PluginState.DISABLED


def test_a_broken_plugin_does_not_take_its_ids_from_others(site):
    write_plugin(site, "bad_plugin", kernels_hook("kernel('good.layer_norm')", "kernel('bad.levitate', op='levitate')"))
    write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"})
    assert_refused(discover(env={}), "bad", PluginState.INVALID, "levitate")
