"""Helpers beside the tests are imported by name; plug-ins that tests write to disk are forgotten."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def catalog():
    """What the command line finds in its tests."""
    from cli_world import cli_catalog

    return cli_catalog()


@pytest.fixture
def phyai(catalog):
    """The command, in this process."""
    from cli_world import command

    return command(catalog)


@pytest.fixture
def policy_file(tmp_path):
    """Writes a policy and gives its path."""

    def write(text, name="policy.yaml"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on ``sys.path`` with one plug-in that works; modules loaded from it are forgotten afterwards."""
    from plugin_sites import kernels_hook, write_distribution, write_plugin

    folder = tmp_path / "site"
    write_plugin(folder, "good_plugin", kernels_hook("kernel('good.layer_norm')"))
    write_distribution(folder, "phyai-backend-good", {"good": "good_plugin"})
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
