"""Writing a new backend: a complete distribution, from the templates beside this module.

>>> names("my-fast")
Names(name='my_fast', distribution='phyai-backend-my-fast', package='phyai_backend_my_fast')
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import attrs

from phyai.errors import PhyAIError
from phyai.files.replacing import filling

#: The licenses to choose from, by their SPDX names.
LICENSES = ("Apache-2.0", "MIT", "BSD-3-Clause")
#: Names that PhyAI's own backends have.
TAKEN = ("reference", "torch", "decomposed", "cuda", "flashinfer", "humming", "core", "models", "serve")
_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_LONGEST = 40


@attrs.frozen
class Names:
    """What a backend is called: in kernel ids, as a distribution, as a package."""

    name: str
    distribution: str
    package: str


def names(name: str, taken: Collection[str] = TAKEN) -> Names:
    """The names that follow from one.

    Raises:
        PhyAIError: it is no name for a backend, or another has it.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise PhyAIError(
            f"{name!r} is no name for a backend: small letters and digits, words joined by - or _, a letter first, "
            f"at most {_LONGEST} characters (my-fast)"
        )
    short = name.replace("-", "_")
    if short in taken:
        raise PhyAIError(f"a backend {short!r} is there already; its kernels' ids would clash with yours")
    return Names(short, f"phyai-backend-{short.replace('_', '-')}", f"phyai_backend_{short}")


def write_backend(target: Path, named: Names, *, license: str, author: str, year: int, core: str) -> list[Path]:
    """Write a new distribution into the folder ``target``, which must not exist; the paths written, in order.

    All of it is there in the end, or nothing: it is written beside ``target`` and moved.

    Raises:
        PhyAIError: the folder exists, its parent does not, or the license is none of :data:`LICENSES`.
    """
    if license not in LICENSES:
        raise PhyAIError(f"license {license!r} is none of {', '.join(LICENSES)}")
    if target.exists() or target.is_symlink():
        raise PhyAIError(f"{target} exists; nothing is written over")
    if not target.parent.is_dir():
        raise PhyAIError(f"{target.parent} is no folder; make it first")
    values = {
        "NAME": named.name, "DISTRIBUTION": named.distribution, "PACKAGE": named.package,
        "LICENSE": license, "AUTHOR": author, "YEAR": str(year), "CORE": core,
    }  # fmt: skip
    with filling(target) as folder:
        for path, text in _files(license, named.package):
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_filled(text, values), encoding="utf-8")
    return sorted(path for path in target.rglob("*") if path.is_file())


def _files(license: str, package: str) -> Iterator[tuple[str, str]]:
    """Every file's path, and its text before values are filled in."""
    root = resources.files("phyai.scaffold")
    yield "LICENSE", root.joinpath("licenses", f"{license}.txt").read_text(encoding="utf-8")
    for path, file in _walk(root.joinpath("templates"), ""):
        name = path.removesuffix(".in").replace("src/package/", f"src/{package}/")
        yield name.replace("gitignore", ".gitignore"), file.read_text(encoding="utf-8")


def _walk(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _walk(entry, f"{path}{entry.name}/")
        elif entry.name.endswith(".in"):
            yield f"{path}{entry.name}", entry


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text)
