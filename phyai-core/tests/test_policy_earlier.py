"""What the earlier system calls otherwise, in policies."""

from __future__ import annotations

import pytest
from phyai.predicates import match
from policy_texts import load, rules


@pytest.mark.parametrize(
    ("earlier", "ours"),
    [
        ("op: gemm, dtype.input: bf16", {"op": "gemm", "dtype.x": "bf16"}),
        ("op: attention, dtype.input: bf16", {"op": "attention", "dtype.q": "bf16"}),
        ("op: rmsnorm, shape.hidden: 1024", {"op": "rms_norm", "shape.D": 1024}),
        ("op: gemm, quant.format: bf16", {"op": "gemm", "quant.format": None, "dtype.x": "bf16"}),
        ("op: gemm, quant.granularity: per_channel", {"op": "gemm", "quant.granularity": "channel"}),
        ("op: gemm, quant.granularity: [per_tensor, block]", {"op": "gemm", "quant.granularity": ["tensor", "block"]}),
        ("op: gemm, lib.flashinfer: true", {"op": "gemm", "lib.flashinfer": ">=0"}),
        ("op: activation, attrs: {gated: true}", {"op": "gated_activation", "attrs.gated": True}),
        ("op: attention, attrs.sliding_window: 128", {"op": "attention", "attrs.window": 128}),
    ],
)
def test_facts_of_the_earlier_system_are_read_as_ours(earlier, ours):
    (one,) = load(rules(f"{{id: a, match: {{{earlier}}}, numerics: any}}")).policy.rules
    assert one.match == match(ours)


def test_a_fact_that_the_op_never_carries_is_a_warning_with_the_reason():
    loaded = load(rules("{id: a, match: {op: gemm, shape.heads: 8}, prefer: 'torch.*'}"))
    (warning,) = loaded.warnings
    assert str(warning).startswith("p.yaml:3:31: no call of gemm carries this fact, so the condition never holds")


def test_a_rule_that_no_call_can_match_is_a_warning():
    (warning,) = load(rules("{id: a, match: {device.arch: sm90, device.vendor: amd}, prefer: 'torch.*'}")).warnings
    assert warning.message.startswith("no call can match rule `a`")


def test_an_op_that_only_the_earlier_system_has_is_no_error():
    loaded = load(rules("{id: a, match: {op: attention_gdn}, prefer: [fla.attention_gdn]}"))
    assert [w.message for w in loaded.warnings] == [
        "an op of the earlier system, so no call here matches this",
        "backend `fla` is not installed",
    ]


def test_a_backend_of_the_earlier_system_names_what_replaced_it():
    loaded = load(rules("{id: a, match: {op: attention}, prefer: [sdpa.attention]}"))
    assert loaded.warnings[0].suggestion == "the kernels here are `torch.*`"
