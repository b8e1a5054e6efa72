"""The values that an op's attributes may have, and what a call's facts may be together."""

from __future__ import annotations

import math

import pytest
from fake_calls import CPU, Fake, catalog, kernel, policy
from phyai.calls import attributes, call_facts
from phyai.dispatch import Dispatcher
from phyai.errors import CallError
from phyai.ops.attention import OP as ATTENTION
from phyai.ops.conv2d import OP as CONV2D
from phyai.ops.quantize_activation import OP as QUANTIZE
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


GROUPS_OF_64 = {"format": "int8", "granularity": "group", "group_size": 64}


@pytest.mark.parametrize("k", [*range(1, 130), 4096])
def test_groups_are_taken_where_rows_can_be_cut_into_them(k):
    """What torch makes of it is the oracle."""
    torch = pytest.importorskip("torch", reason="the oracle is torch's")
    try:
        torch.empty(2, k).unflatten(-1, (-1, 64))
    except RuntimeError:
        with pytest.raises(CallError, match=f"group_size=64 does not divide K={k}"):
            call_facts(QUANTIZE, dims={"M": 2, "K": k}, dtypes={"x": "bf16"}, attrs=GROUPS_OF_64)
    else:
        assert call_facts(QUANTIZE, dims={"M": 2, "K": k}, dtypes={"x": "bf16"}, attrs=GROUPS_OF_64)["shape.K"] == k


@pytest.mark.parametrize("granularity", ["tensor", "token"])
def test_a_group_size_without_groups_asks_for_nothing(granularity):
    attrs = {**GROUPS_OF_64, "granularity": granularity}
    assert call_facts(QUANTIZE, dims={"K": 100}, dtypes={"x": "bf16"}, attrs=attrs)["shape.K"] == 100


def test_groups_that_do_not_divide_a_row_are_refused_when_a_site_is_bound():
    with pytest.raises(CallError, match=r"binding site q:quantize_activation: group_size=64 does not divide K=100"):
        quantizing(dims={"K": 100})


def test_groups_that_do_not_divide_a_row_are_refused_in_a_call_before_any_kernel_runs():
    site = quantizing(dims={})
    with pytest.raises(
        CallError, match=r"at site q:.*: group_size=64 does not divide K=100.*\n.*\n  given: x\(64, 100\)"
    ):
        site.run(Fake((64, 100)))
    with pytest.raises(CallError, match="does not divide K=100"):
        site.decide(M=64, K=100)
    assert site.decisions == ()
    assert site.run(Fake((64, 128))) == "mine.quantize_activation"


def quantizing(dims):
    made = Dispatcher(catalog(kernel("mine.quantize_activation"), ops=(QUANTIZE,)), policy(), CPU)
    return made.bind("quantize_activation", layer="q", attrs=GROUPS_OF_64, dtypes={"x": "bf16"}, dims=dims)
