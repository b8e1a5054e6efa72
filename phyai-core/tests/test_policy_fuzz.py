"""Mutated policy files load or are refused with a place; nothing else escapes. The benchmark runs ten thousand."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_catalogs import small_catalog

CASES = Path(__file__).parent / "data" / "policies"
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fuzz_policy.py"


@pytest.fixture(scope="module")
def fuzz():
    if not SCRIPT.exists():
        pytest.skip(f"{SCRIPT} comes with the repository, not with the distribution")
    spec = importlib.util.spec_from_file_location("fuzz_policy", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_mutated_files_load_or_are_refused_with_a_place(fuzz):
    seeds = [path.read_text() for path in sorted(CASES.glob("*.yaml"))]
    outcomes = set()
    for number in range(300):
        text = fuzz.mutated(random.Random(number), seeds)
        outcome = fuzz.verdict(text, small_catalog())
        assert outcome in ("loads", "refused"), text
        outcomes.add(outcome)
    assert outcomes == {"loads", "refused"}


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_any_text_loads_or_is_refused_with_a_place(fuzz, text):
    assert fuzz.verdict(text, small_catalog()) in ("loads", "refused")


_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = ("id", "priority", "match", "prefer", "restrict_to", "pin", "params", "numerics", "fallback")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(_KEYS), _DATA, max_size=5), max_size=3), _DATA)
def test_any_data_in_the_place_of_a_rule_loads_or_is_refused_with_a_place(fuzz, rules, quantization):
    import io

    from ruamel.yaml import YAML

    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump({"schema": "v1", "rules": rules, "quantization": quantization}, stream)
    assert fuzz.verdict(stream.getvalue(), small_catalog()) in ("loads", "refused")
