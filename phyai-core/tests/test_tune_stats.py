"""Medians, their intervals, and when a win counts: against closed forms."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.tune.stats import MARGIN, beats, bounds, median, noise, rank

times = st.lists(st.floats(1e-9, 1e3, allow_nan=False), min_size=1, max_size=40)


@given(times)
@settings(max_examples=100)
def test_the_median_is_that_of_the_standard_library(samples):
    assert median(samples) == pytest.approx(statistics.median(samples))


@pytest.mark.parametrize("n", [6, 9, 15, 30, 100])
def test_an_interval_holds_the_median_with_the_stated_confidence_and_no_narrower_one_does(n):
    def coverage(k):
        return 1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n

    assert coverage(rank(n)) >= 0.95
    assert coverage(rank(n) + 1) < 0.95


def test_intervals_hold_the_true_median_as_often_as_the_binomial_says():
    draw = random.Random(0)
    n, trials = 9, 4000
    expected = 1 - 2 * sum(math.comb(n, i) for i in range(rank(n))) / 2**n
    held = 0
    for _ in range(trials):
        low, high = bounds([draw.expovariate(1.0) for _ in range(n)])
        held += low <= math.log(2) <= high
    assert held / trials == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / trials))


@given(times)
@settings(max_examples=100)
def test_the_interval_holds_the_sample_median(samples):
    low, high = bounds(samples)
    assert low <= median(samples) <= high


def test_equal_kernels_win_against_each_other_as_seldom_as_ranks_say():
    # all five of one below all five of the other: one of the C(10, 5) ways in which ten ranks fall to two kernels
    draw = random.Random(1)
    trials = 40_000
    wins = sum(
        beats([draw.random() for _ in range(5)], [draw.random() for _ in range(5)], margin=0.0) for _ in range(trials)
    )
    expected = 1 / math.comb(10, 5)
    assert wins / trials == pytest.approx(expected, abs=5 * math.sqrt(expected / trials))


@given(times, times)
@settings(max_examples=100)
def test_two_kernels_never_beat_each_other(one, other):
    assert not (beats(one, other) and beats(other, one))


def test_a_win_must_be_larger_than_the_margin():
    assert not beats([1 - MARGIN / 2] * 9, [1.0] * 9)
    assert beats([1 - 2 * MARGIN] * 9, [1.0] * 9)


def test_noise_is_half_the_interval():
    assert noise([1.0, 2.0, 3.0]) == 0.5  # too few samples: from the least to the largest
