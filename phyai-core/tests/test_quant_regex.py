"""Bounded matching agrees with Python's own, and hostile patterns stay fast."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.quant.regex import PatternError, _ends, check, starts_with

pieces = st.sampled_from(
    ["a", "b", ".", r"\.", "[ab]", "[^a]", r"\d", r"\w", r"\W", "(a|bb)", "(?:ab|a)", "[0-9a]", r"\b"]
)
repeated = st.tuples(pieces, st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "*?", "+?"]))
asserted = st.sampled_from(["", "(?!.*bb)", "(?=a)", "^"])
patterns = st.builds(
    lambda head, parts, tail: head + "".join(p if p == r"\b" else p + r for p, r in parts) + tail,
    asserted, st.lists(repeated, max_size=6), st.sampled_from(["", "$", "(a*b)*", "((a|b)+)?"]),
)  # fmt: skip


@given(patterns, st.text("ab.1_", max_size=12))
@settings(max_examples=300, deadline=None)
def test_agrees_with_re_match(pattern, text):
    expected = re.match(pattern, text) is not None
    assert starts_with(pattern, text) is expected
    assert bool(_ends(re._parser.parse(pattern), text, frozenset({0}))) is expected


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*a){20}b", ".*a" * 20 + "x", "((a*)*)*b", "(?!(a+)+$)b"])
def test_hostile_patterns_are_fast(pattern):
    began = time.perf_counter()
    assert starts_with(pattern, "a" * 200 + "c") is False
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    "pattern", [r"(a)\1", "(?i)a", "(?<=a)b", "(a)?(?(1)b|c)", "a{1000}", "(", "x" * 1025, "(((((a*)*)*)*)*)*", "(?>a)"]
)
def test_what_is_not_supported_is_refused(pattern):
    with pytest.raises(PatternError):
        check(pattern)


def test_long_names_do_not_match():
    assert starts_with("a", "a" * 512)
    assert not starts_with("a", "a" * 513)
