"""Tiny distributions written to disk, so that tests go through real entry-point discovery."""

from __future__ import annotations

import textwrap
from pathlib import Path

from phyai.catalog import Catalog
from phyai.plugins import PluginState, PluginStatus

#: A kernel that anyone can declare: no capability beyond the op.
KERNEL = """
from phyai.kernel import Capture, Kernel, Numerics
from phyai.predicates import match

def kernel(id, op="layer_norm", when=None, **more):
    return Kernel(id=id, op=op, when=match(when or {}), prepare=f"{__name__}:prepare", capture=Capture.SAFE,
                  numerics=Numerics(reproducible=True), **more)

def prepare(facts, weights, params, resources):
    raise NotImplementedError
"""


def write_module(site: Path, name: str, code: str) -> None:
    site.mkdir(parents=True, exist_ok=True)
    (site / f"{name}.py").write_text(textwrap.dedent(code))


def write_plugin(site: Path, module: str, hooks: str, *, api: str = "PLUGIN_API = 1") -> None:
    """A plug-in module: ``hooks`` are its hook functions, written with ``kernel(id, …)`` at hand."""
    code = f"from phyai.plugins import hookimpl\n{api}\n{KERNEL}\n{textwrap.dedent(hooks)}"
    write_module(site, module, code)


def kernels_hook(*calls: str) -> str:
    """A ``phyai_kernels`` hook that returns the given ``kernel(…)`` calls."""
    return f"@hookimpl\ndef phyai_kernels():\n    return [{', '.join(calls)}]\n"


def write_distribution(
    site: Path,
    name: str,
    entry_points: dict[str, str],
    *,
    version: str = "1.0",
    group: str = "phyai.backends",
    requires: tuple[str, ...] = (),
) -> Path:
    """The dist-info folder of a distribution whose modules lie in ``site``."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {requirement}" for requirement in requires)]
    (folder / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
    (folder / "entry_points.txt").write_text(
        f"[{group}]\n" + "".join(f"{entry} = {value}\n" for entry, value in entry_points.items())
    )
    return folder


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
