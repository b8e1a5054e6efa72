"""Discovery: what works, and every way in which a plug-in can be broken. Real distributions on disk, no mocks."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys

import pytest
from phyai.errors import PhyAIError
from phyai.plugins import PluginState, discover
from phyai.plugins.loading import parse_disabled
from phyai.plugins.metadata import normalized
from plugin_sites import assert_refused, found, kernels_hook, write_distribution, write_module, write_plugin


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
        ("PLUGIN_API = 2", "PLUGIN_API 2", "upgrade phyai-core"),
        ("PLUGIN_API = 0", "PLUGIN_API 0", "upgrade phyai-backend-bad"),
        ("PLUGIN_API = '1'", "PLUGIN_API '1'", "upgrade phyai-backend-bad"),
        ("PLUGIN_API = True", "PLUGIN_API True", "upgrade phyai-backend-bad"),
        ("", "does not state PLUGIN_API", "upgrade phyai-backend-bad"),
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
    assert_refused(discover(env={}), "bad", PluginState.HALF_REMOVED, "METADATA", "install phyai-backend-bad again")


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
