"""Every policy in the documentation and every preset loads, against the kernels that the repository declares."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from phyai.plugins import discover
from phyai.policy import load_policy, parse_policy

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "policy.md"
PRESETS = sorted((ROOT / "policies").glob("**/*.yaml"))


def blocks(language):
    if not PAGE.exists():
        return []
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(not PAGE.exists(), reason="the documentation comes with the repository")
def test_there_are_examples_to_test():
    assert len(blocks("yaml")) > 8


@pytest.mark.parametrize("block", blocks("yaml"))
def test_an_example_of_the_page_loads(block):
    text = block if block.startswith("schema:") else f"schema: phyai.kernel/v1\n{block}"
    policy = parse_policy(text, catalog=discover()).policy
    assert policy.rules or policy.quantization or policy.defaults.ties


@pytest.mark.parametrize("block", blocks("python"))
def test_the_python_of_the_page_runs(block):
    exec(compile(block, "docs/policy.md", "exec"), {})


@pytest.mark.parametrize("path", PRESETS, ids=[str(path.relative_to(ROOT)) for path in PRESETS])
def test_a_preset_loads(path):
    load_policy(path, catalog=discover())
