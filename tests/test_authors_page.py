"""docs/authors.md: its Python runs as written, its policies load, its tables name what exists."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest
from phyai.cli.registry import BUILT_IN
from phyai.kernel import Kernel
from phyai.plugins.hooks import RECORD_HOOKS

PAGE = (Path(__file__).parent.parent / "docs" / "authors.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_python_of_the_page_runs_from_top_to_bottom():
    for needed in ("torch", "hypothesis", "phyai_backend_reference"):
        pytest.importorskip(needed, reason="the page uses it")
    scope: dict[str, object] = {}
    assert len(blocks("python")) >= 5
    for code in blocks("python"):
        exec(compile(code, "docs/authors.md", "exec"), scope)
    assert [kernel.id for kernel in scope["phyai_kernels"]()] == ["mine.activation.gelu"]


def test_the_policies_of_the_page_load():
    from phyai.catalog import Catalog
    from phyai.policy import parse_policy

    assert blocks("yaml")
    for text in blocks("yaml"):
        assert parse_policy(text.encode(), file="authors.md", catalog=Catalog.build()).policy.rules


def test_the_page_says_what_every_field_of_a_kernel_decides():
    said = set(re.findall(r"^\| `([a-z_]+)(?:\.[a-z_]+)?` \|", PAGE, re.MULTILINE))
    assert {field.name for field in attrs.fields(Kernel) if field.init} <= said


def test_the_page_names_every_hook_and_every_check():
    from phyai.testing.checks import CHECKS
    from phyai.testing.conformance import DECLARATION, PACKER

    for name in (*RECORD_HOOKS.values(), "phyai_decision_made"):
        assert f"`{name}(" in PAGE, name
    for name in (*(check.name for check in CHECKS), DECLARATION, PACKER):
        assert f"`{name}`" in PAGE, name


def test_the_commands_of_the_page_exist():
    known = {command.name for command in BUILT_IN}
    assert set(re.findall(r"^phyai ([a-z-]+)", PAGE, re.MULTILINE)) <= known
