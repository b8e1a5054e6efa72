"""Tiny distributions written to disk, so that tests go through real entry-point discovery."""

from __future__ import annotations

import textwrap
from pathlib import Path

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
