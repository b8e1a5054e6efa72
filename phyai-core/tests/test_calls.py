"""The values that an op's attributes may have."""

from __future__ import annotations

import math

import pytest
from phyai.calls import attributes
from phyai.errors import CallError
from phyai.ops.attention import OP as ATTENTION
from phyai.ops.conv2d import OP as CONV2D
from phyai.ops.rms_norm import OP as RMS_NORM


@pytest.mark.parametrize(
    ("op", "given"),
    [
        (ATTENTION, {"window": None}),
        (ATTENTION, {"window": 1}),
        (ATTENTION, {"soft_cap": 0.5}),
        (ATTENTION, {"scale": -1.0}),
        (ATTENTION, {"causal": True}),
        (CONV2D, {"padding": 0}),
        (RMS_NORM, {"eps": 0}),
        (RMS_NORM, {"offset": 1}),
    ],
)
def test_a_value_that_the_signature_allows_is_taken(op, given):
    assert given.items() <= attributes(op, given).items()


@pytest.mark.parametrize(
    ("op", "name", "value", "allowed"),
    [
        (ATTENTION, "window", 0, "a whole number from 1 on, or absent"),
        (ATTENTION, "window", -1, "a whole number from 1 on, or absent"),
        (ATTENTION, "window", 1.5, "a whole number from 1 on, or absent"),
        (ATTENTION, "window", True, "a whole number from 1 on, or absent"),
        (ATTENTION, "window", "4", "a whole number from 1 on, or absent"),
        (ATTENTION, "soft_cap", 0, "a number above 0, or absent"),
        (ATTENTION, "scale", math.nan, "a number, or absent"),
        (ATTENTION, "causal", 1, "true or false"),
        (ATTENTION, "layout", "packed", "padded, ragged"),
        (CONV2D, "stride", 0, "a whole number from 1 on"),
        (CONV2D, "padding", -1, "a whole number from 0 on"),
        (RMS_NORM, "eps", -1e-6, "a number from 0 on"),
        (RMS_NORM, "eps", None, "a number from 0 on"),
    ],
)
def test_any_other_is_refused_with_what_is_allowed(op, name, value, allowed):
    with pytest.raises(CallError) as caught:
        attributes(op, {name: value})
    assert str(caught.value) == f"{op.name}: {name}={value!r}; allowed: {allowed}"
