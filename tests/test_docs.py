"""What the documentation names is there: files, modules, commands with their options."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest
from phyai.cli.parsing import parser_of
from phyai.cli.registry import commands
from phyai.plugins import discover
from phyai.plugins.metadata import GROUPS

ROOT = Path(__file__).parent.parent
PATTERNS = ("*.md", "docs/*.md", "benchmarks/notes/*.md", "phyai-*/README.md", "examples/*/README.md")
PAGES = sorted(page for pattern in PATTERNS for page in ROOT.glob(pattern))
FOLDERS = tuple(path.name for path in ROOT.iterdir() if path.is_dir())
SUFFIXES = (".cu", ".cuh", ".json", ".md", ".py", ".svg", ".toml", ".yaml")

of_every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def code(page: Path) -> list[str]:
    """The lines of what a page sets as code: every span, and every line of its blocks."""
    text = page.read_text(encoding="utf-8")
    blocks = "".join(BLOCK.findall(text)).replace("\\\n", " ")
    return [*re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)), *blocks.splitlines()]


@of_every_page
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:\s]+)[)#]", BLOCK.sub("", page.read_text(encoding="utf-8")))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@of_every_page
def test_files_that_are_named_are_there(page: Path) -> None:
    """From the root, from the page's folder or the one above, or from that of a distribution or of its package."""
    roots = (ROOT, page.parent, page.parent.parent, *ROOT.glob("phyai-*"), *ROOT.glob("phyai-*/src/*"))
    named = {name for line in code(page) for name in re.findall(r"(?<![\w./*-])[\w-][\w.-]*(?:/[\w.*-]+)+", line)}
    ours = [name for name in named if name.startswith(FOLDERS) or name.endswith(SUFFIXES)]
    assert [name for name in sorted(ours) if not any(any(root.glob(name)) for root in roots)] == []


@of_every_page
def test_modules_that_are_named_are_there(page: Path) -> None:
    named = {
        name for line in code(page) for name in re.findall(r"(?<![\w./-])phyai(?:_\w+)?(?:\.\w+)+(?![\w/-])", line)
    }
    assert [name for name in sorted(named - set(GROUPS)) if not is_there(name)] == []


def is_there(name: str) -> bool:
    """Whether ``package.module.attribute`` is; libraries that a module imports need not be installed, nor examples."""
    parts = name.split(".")
    if any(ROOT.glob(f"examples/*/src/{'/'.join(parts)}*")):
        return True
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if not f"{'.'.join(parts[:end])}.".startswith(f"{error.name}."):
                return True
            continue
        for attribute in parts[end:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


@of_every_page
def test_commands_parse(page: Path) -> None:
    listed, refused = commands(discover()), []
    for line in code(page):
        command = re.search(r"(?:^|[\s=$])phyai ((?!import )[a-z].*)", line)
        if command is None:
            continue
        name, *rest = [word for word in shlex.split(command[1], comments=True) if word not in ("…", "...")]
        if all(re.fullmatch(r"[a-z][a-z-]*", word) for word in rest):
            rest.append("--help")  # a mention: what the command needs is left out
        module = importlib.import_module(listed[name].module)
        try:
            parser_of(listed[name], module).parse_args(rest)
        except SystemExit as done:
            refused += [line] if done.code else []
    assert refused == []
