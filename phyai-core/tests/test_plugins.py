"""Discovery: what works, and every way in which a plug-in can be broken. Real distributions on disk, no mocks."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from phyai.catalog import Catalog
from phyai.errors import DeclarationError, PhyAIError
from phyai.plugins import PluginState, PluginStatus, discover
from phyai.plugins.loading import parse_disabled
from phyai.plugins.metadata import normalized

sys.path.insert(0, str(Path(__file__).parent))
from plugin_sites import kernels_hook, write_distribution, write_module, write_plugin


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on ``sys.path`` with one plug-in that works; modules loaded from it are forgotten afterwards."""
    folder = tmp_path / "site"
    write_plugin(folder, "good_plugin", kernels_hook("kernel('good.layer_norm')"))
    write_distribution(folder, "phyai-backend-good", {"good": "good_plugin"})
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def found(catalog: Catalog, name: str) -> PluginStatus:
    rows = [status for status in catalog.plugins if status.name == name]
    assert len(rows) == 1, catalog.plugins
    return rows[0]


def assert_refused(catalog: Catalog, name: str, state: PluginState, *words: str) -> None:
    """``name`` is a row in ``state`` that says ``words``; nothing of it is registered, the good plug-in still is."""
    status = found(catalog, name)
    assert status.state is state, status
    for word in words:
        assert word in f"{status.reason} | {status.advice}", status
    assert not [kernel.id for kernel in catalog.kernels if kernel.backend == name]
    assert catalog.kernel("good.layer_norm").op == "layer_norm"
    assert found(catalog, "good").state is PluginState.READY


def test_a_plugin_that_works_is_ready_and_its_kernels_are_in_the_catalog(site):
    catalog = discover(env={})
    status = found(catalog, "good")
    assert (status.distribution, status.version) == ("phyai-backend-good", "1.0")
    assert status.group == "phyai.backends"
    assert catalog.owner("good.layer_norm") == status


def test_every_kind_of_record_reaches_the_catalog(site):
    write_plugin(
        site,
        "full_plugin",
        """
        import attrs
        from phyai.environment import Library
        from phyai.op import Dim, Op, Tensor
        from phyai.plugins import Command

        @attrs.frozen
        class Named:
            name: str

        @hookimpl
        def phyai_ops():
            return [Op("snake", "y = x + sin(x)**2", (Tensor("x", ("...M",)), Tensor("y", ("...M",), "output")),
                       (Dim("M", "elements", True),))]

        @hookimpl
        def phyai_kernels():
            return [kernel("full.snake", op="snake", when={"lib.packaging": ">=1"}, specializes_on=("shape.M",))]

        @hookimpl
        def phyai_libraries():
            return [Library("packaging", ("packaging",), "24.0")]

        @hookimpl
        def phyai_models():
            return [Named("toy")]

        @hookimpl
        def phyai_importers():
            return [Named("toy_importer")]

        @hookimpl
        def phyai_quant_formats():
            return [Named("toy_format")]

        @hookimpl
        def phyai_commands():
            return [Command("toy", "play", "full_plugin")]
        """,
    )
    write_distribution(site, "full", {"full": "full_plugin"})
    catalog = discover(env={})
    assert found(catalog, "full").state is PluginState.READY, found(catalog, "full")
    assert catalog.op("snake").dims[0].name == "M"
    assert [kernel.id for kernel in catalog.kernels_of("snake")] == ["full.snake"]
    assert "packaging" in [library.name for library in catalog.libraries]
    assert catalog.model("toy").name == "toy"
    assert "toy_importer" in [record.name for record in catalog.importers]
    assert "toy_format" in [record.name for record in catalog.quant_formats]
    assert "toy" in [command.name for command in catalog.commands]


def test_import_error_shows_its_last_line(site):
    write_module(site, "bad_plugin", "raise RuntimeError('first line\\nthe driver is too old')")
    write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"})
    assert_refused(discover(env={}), "bad", PluginState.IMPORT_ERROR, "RuntimeError: the driver is too old")


@pytest.mark.parametrize("code", ["def broken(:\n", "import sys; sys.exit(3)"])
def test_a_module_that_does_not_compile_or_exits_is_an_import_error(site, code):
    write_module(site, "bad_plugin", code)
    write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"})
    assert_refused(discover(env={}), "bad", PluginState.IMPORT_ERROR, "phyai-backend-bad")


def test_missing_library_names_the_requirement_to_install(site):
    write_module(site, "bad_plugin", "import a_library_that_is_not_there")
    write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"}, requires=("the-library>=2.1", "attrs"))
    assert_refused(
        discover(env={}),
        "bad",
        PluginState.IMPORT_ERROR,
        "No module named 'a_library_that_is_not_there'",
        'pip install "the-library>=2.1"',
    )


def test_missing_module_that_no_requirement_explains_is_named(site):
    write_module(site, "bad_plugin", "import a_library_that_is_not_there.sub")
    write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"})
    assert_refused(discover(env={}), "bad", PluginState.IMPORT_ERROR, "pip install a_library_that_is_not_there")


def test_declared_library_that_is_not_installed_leaves_the_kernels_known(site):
    write_plugin(
        site,
        "lib_plugin",
        kernels_hook("kernel('needy.layer_norm', when={'lib.needed': '>=2'})")
        + """
from phyai.environment import Library

@hookimpl
def phyai_libraries():
    return [Library("needed", ("needed-lib-python",), "2.0")]
""",
    )
    write_distribution(site, "phyai-backend-needy", {"needy": "lib_plugin"})
    catalog = discover(env={})
    status = found(catalog, "needy")
    assert status.state is PluginState.MISSING_LIBRARY
    assert "needed-lib-python is not installed" in status.reason
    assert status.advice == 'pip install "needed-lib-python"'
    assert catalog.kernel("needy.layer_norm").backend == "needy"


def test_requirement_in_a_wrong_version_says_which_is_installed(site):
    write_plugin(site, "old_plugin", kernels_hook("kernel('old.layer_norm')"))
    requires = ("packaging>=9999", 'never-there; python_version < "3"', 'extra-thing; extra == "cuda"')
    write_distribution(site, "phyai-backend-old", {"old": "old_plugin"}, requires=requires)
    status = found(discover(env={}), "old")
    assert status.state is PluginState.MISSING_LIBRARY
    assert "packaging>=9999 is required" in status.reason
    assert "is installed" in status.reason
    assert "never-there" not in status.reason
    assert "extra-thing" not in status.reason


@pytest.mark.parametrize(
    ("api", "says", "advice"),
    [
        ("PLUGIN_API = 2", "PLUGIN_API 2", "pip install -U phyai-core"),
        ("PLUGIN_API = 0", "PLUGIN_API 0", "pip install -U phyai-backend-bad"),
        ("PLUGIN_API = '1'", "PLUGIN_API '1'", "pip install -U phyai-backend-bad"),
        ("PLUGIN_API = True", "PLUGIN_API True", "pip install -U phyai-backend-bad"),
        ("", "does not state PLUGIN_API", "pip install -U phyai-backend-bad"),
    ],
)
def test_wrong_api_version(site, api, says, advice):
    write_plugin(site, "bad_plugin", kernels_hook("kernel('bad.layer_norm')"), api=api)
    write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"})
    assert_refused(discover(env={}), "bad", PluginState.WRONG_API, says, advice)


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ("@hookimpl\ndef phyai_kernels():\n    raise KeyError('boom')", ("phyai_kernels", "KeyError: 'boom'")),
        ("@hookimpl\ndef phyai_models():\n    yield 1 / 0", ("phyai_models", "ZeroDivisionError")),
        ("@hookimpl\ndef phyai_kernels():\n    return 7", ("phyai_kernels", "TypeError")),
        ("@hookimpl\ndef phyai_kernel():\n    return []", ("phyai_kernel",)),
        ("@hookimpl\ndef phyai_kernels(surprise):\n    return []", ("surprise",)),
    ],
)
def test_a_hook_that_raises_or_does_not_exist_refuses_the_whole_plugin(site, hooks, words):
    # the ops hook works and runs first: it must not leave anything behind
    write_plugin(
        site,
        "bad_plugin",
        """
        from phyai.op import Op
        @hookimpl
        def phyai_ops():
            return [Op("left_behind", "", (), ())]
        """
        + "\n",
    )
    with (site / "bad_plugin.py").open("a") as file:
        file.write(hooks)
    write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"})
    catalog = discover(env={})
    assert_refused(catalog, "bad", PluginState.HOOK_ERROR, *words)
    assert "left_behind" not in [op.name for op in catalog.ops]


def test_metadata_whose_module_is_gone(site):
    folder = write_distribution(site, "phyai-backend-bad", {"bad": "a_package_removed.plugin"})
    assert_refused(discover(env={}), "bad", PluginState.HALF_REMOVED, "a_package_removed.plugin is gone", str(folder))


def test_distribution_whose_metadata_file_is_gone(site):
    write_plugin(site, "bad_plugin", kernels_hook("kernel('bad.layer_norm')"))
    folder = write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"})
    (folder / "METADATA").unlink()
    assert_refused(discover(env={}), "bad", PluginState.HALF_REMOVED, "METADATA", "--force-reinstall")


def test_unreadable_entry_points_are_a_row_of_the_distribution(site):
    folder = write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"})
    (folder / "entry_points.txt").write_text("[phyai.backends]\nthis is no entry\n")
    assert_refused(discover(env={}), "phyai-backend-bad", PluginState.HALF_REMOVED, "entry_points.txt")


@pytest.mark.parametrize("file", ["METADATA", "entry_points.txt"])
def test_metadata_that_is_no_text_is_a_row_too(site, file):
    write_plugin(site, "bad_plugin", kernels_hook("kernel('bad.layer_norm')"))
    folder = write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"})
    (folder / file).write_bytes(b"[phyai.backends]\nbad = bad_\xff\xfeplugin\n")
    assert_refused(discover(env={}), "bad", PluginState.HALF_REMOVED, "phyai")


def test_two_versions_of_one_distribution_name_both(site, tmp_path, monkeypatch):
    write_plugin(site, "bad_plugin", kernels_hook("kernel('bad.layer_norm')"))
    write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"}, version="1.0")
    other = tmp_path / "other"
    write_distribution(other, "Phyai_Backend.Bad", {"bad": "bad_plugin"}, version="1.2")
    monkeypatch.syspath_prepend(str(other))
    assert_refused(discover(env={}), "bad", PluginState.TWO_VERSIONS, "1.0 in", "1.2 in", "pip uninstall")


def test_the_same_version_seen_twice_is_no_problem(site, tmp_path, monkeypatch):
    other = tmp_path / "other"
    shutil.copytree(site, other)
    monkeypatch.syspath_prepend(str(other))
    assert found(discover(env={}), "good").state is PluginState.READY


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


@pytest.mark.parametrize("name", ["good", "phyai-backend-good"])
def test_disable_by_plugin_or_distribution_name(site, name):
    catalog = discover(env={"PHYAI_DISABLE_PLUGINS": name})
    assert found(catalog, "good").state is PluginState.DISABLED
    assert not catalog.has_kernel("good.layer_norm")
    assert "good_plugin" not in sys.modules


def test_disabling_an_unknown_name_is_reported(site):
    status = found(discover(env={"PHYAI_DISABLE_PLUGINS": "godo"}), "godo")
    assert status.state is PluginState.UNKNOWN
    assert "PHYAI_DISABLE_PLUGINS" in status.reason
    assert "good" in status.advice


@pytest.mark.parametrize("value", ["a,,b", "a;b", ",", "a, b c"])
def test_malformed_disable_variable_is_refused(value):
    with pytest.raises(PhyAIError, match="PHYAI_DISABLE_PLUGINS"):
        parse_disabled(value)


def test_observer_that_raises_is_reported_once_and_others_still_hear(site, caplog):
    write_plugin(site, "deaf_plugin", "@hookimpl\ndef phyai_decision_made(decision):\n    raise ValueError('no')")
    write_plugin(
        site, "keen_plugin", "heard = []\n@hookimpl\ndef phyai_decision_made(decision):\n    heard.append(decision)"
    )
    write_distribution(site, "deaf", {"deaf": "deaf_plugin"})
    write_distribution(site, "keen", {"keen": "keen_plugin"})
    catalog = discover(env={})
    with caplog.at_level(logging.WARNING, "phyai.plugins"):
        caplog.clear()
        catalog.observers.decision_made("first")
        catalog.observers.decision_made("second")
    assert sys.modules["keen_plugin"].heard == ["first", "second"]
    assert [record.message.count("deaf") for record in caplog.records] == [1]
    assert "ValueError: no" in caplog.text


def test_discovery_warns_about_what_is_broken_and_only_that(site, caplog):
    write_module(site, "bad_plugin", "raise RuntimeError('boom')")
    write_distribution(site, "phyai-backend-bad", {"bad": "bad_plugin"})
    with caplog.at_level(logging.WARNING, "phyai.plugins"):
        discover(env={"PHYAI_DISABLE_PLUGINS": "good"})
    about = [record.message for record in caplog.records if "phyai-backend-bad" in record.message]
    assert len(about) == 1
    assert not [record for record in caplog.records if "phyai-backend-good" in record.message]


def test_discovering_imports_no_tensor_library():
    code = (
        "import sys, phyai; from phyai.plugins import discover; discover({});"
        "heavy = ('torch', 'triton', 'cupy', 'flashinfer', 'numpy', 'transformers');"
        "print(sorted(name for name in heavy if name in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def test_normalized_names_are_those_of_packaging():
    from packaging.utils import canonicalize_name

    for name in ("Phyai_Backend.X", "a--b__c", "UPPER", "plain"):
        assert normalized(name) == canonicalize_name(name)
