"""Policy files that load: what a rule may say, and how files are read."""

from __future__ import annotations

import os
import time

import pytest
from phyai.errors import PolicyError
from phyai.install import install
from phyai.policy import Layer, NumericsDemand, Restriction, load_policy, parse_policy
from phyai.predicates import match
from policy_catalogs import small_catalog
from policy_texts import CASES, load, rules

# Handed cases


def test_nine_mistakes_are_reported_together_each_with_place_and_suggestion():
    with pytest.raises(PolicyError) as caught:
        load_policy(CASES / "typos.yaml", catalog=small_catalog())
    found = [(p.location.line, p.location.column, p.got, p.suggestion) for p in caught.value.problems]
    assert found == [
        (4, 32, "restrictto", "did you mean `restrict_to`?"),
        (5, 31, "devic.arch", "did you mean `device.arch`?"),
        (6, 44, "sm9O", "did you mean `sm90`?"),
        (7, 25, "rms_nrom", "did you mean `rms_norm`?"),
        (8, 40, "<=sixty", 'write 64, "<=64", "64..512" or "%16"'),
        (9, 23, "high", "for example 10; higher wins"),
        (10, 5, "g", "give it `prefer`, `restrict_to` or `pin`"),
        (11, 59, "prefer, restrict_to", "make two rules of it"),
        (12, 10, "h", "ids are unique in a file"),
    ]
    assert all(f"typos.yaml:{line}:{column}: " in str(caught.value) for line, column, _, _ in found)


def test_a_file_of_the_earlier_system_loads_unchanged():
    loaded = load_policy(CASES / "earlier_grammar.yaml", catalog=small_catalog())
    by_id = {rule.id: rule for rule in loaded.policy.rules}
    assert by_id["affine-layernorm"].prefer == ("flashinfer.layer_norm", "torch.layer_norm")
    assert by_id["affine-layernorm"].match.holds(
        {"op": "layer_norm", "device.vendor": "nvidia", "shape.heads": 2, "attrs.bias": True, "dtype.bias": "fp32"}
    )
    assert by_id["exact-gelu"].restriction == Restriction(("torch.activation.gelu",), pin=True)
    assert by_id["exact-gelu"].layer is Layer.OVERRIDE
    assert by_id["plain-gemm"].restriction == Restriction(("torch.gemm.*",))
    assert by_id["packed-linear"].params == {}
    assert loaded.policy.fallback == "reference"
    assert loaded.policy.relaxes_restrictions
    assert len(loaded.policy.quantization["rules"]) == 3
    assert loaded.policy.profile == "static"


def test_a_file_of_the_earlier_system_is_told_what_differs_here():
    warnings = load_policy(CASES / "earlier_grammar.yaml", catalog=small_catalog()).warnings
    said = [(w.location.line, w.message, w.suggestion) for w in warnings]
    assert (
        34,
        "backend `humming` is not installed",
        install("phyai-backend-humming"),
    ) in said
    assert (
        30,
        "backend `flashinfer` is not installed",
        install("phyai-backend-flashinfer"),
    ) in said
    assert (31, "backend `torch` has no such kernel") in [entry[:2] for entry in said]
    assert (36, "a parameter of the earlier system; it is left out") in [entry[:2] for entry in said]
    (relaxing,) = [message for line, message, _ in said if line == 6]
    assert relaxing.endswith("leaves nothing: `packed-linear`, `plain-gemm`")
    assert [w.location.line for w in warnings] == sorted(w.location.line for w in warnings)


def test_rules_that_touch_but_do_not_overlap_load():
    loaded = load_policy(CASES / "no_conflict.yaml", catalog=small_catalog())
    assert [rule.id for rule in loaded.policy.rules] == ["small-m", "large-m", "large-m-older", "odd-k", "even-k"]


# What a rule may say


def test_a_rule_says_several_aspects():
    (one,) = load(
        rules(
            "{id: a, priority: 3, match: {op: gemm}, pin: torch.gemm.bf16, params: {algorithm: a}, "
            "numerics: [reproducible, batch_invariant], fallback: 'reference.*'}"
        )
    ).policy.rules
    assert one.match == match({"op": "gemm"})
    assert (one.priority, one.restriction) == (3, Restriction(("torch.gemm.bf16",), pin=True))
    assert (one.params, one.fallback) == ({"algorithm": "a"}, ("reference.*",))
    assert one.numerics == NumericsDemand(reproducible=True, batch_invariant=True)
    assert (one.location.line, one.location.column) == (3, 5)


@pytest.mark.parametrize("only_says", ["params: {algorithm: a}", "numerics: any", "fallback: reference.*"])
def test_a_rule_need_not_choose_kernels(only_says):
    (one,) = load(rules(f"{{id: a, match: {{op: gemm}}, {only_says}}}")).policy.rules
    assert one.restriction is None
    assert one.prefer == ()


def test_numerics_can_name_accumulation():
    (one,) = load(rules("{id: a, numerics: {reproducible: true, accumulation: [fp32, fp64]}}")).policy.rules
    assert one.numerics == NumericsDemand(reproducible=True, accumulation=("fp32", "fp64"))


@pytest.mark.parametrize("spelling", ["phyai.kernel/v1", "v1", "1", "'1'"])
def test_the_schema_has_the_spellings_of_the_earlier_system(spelling):
    assert load(f"schema: {spelling}\n").warnings == ()


def test_fallback_reference_warns_only_where_it_relaxes_something():
    head = "schema: v1\ndefaults: {fallback: reference}\nrules:\n"
    assert load(head + "  - {id: a, match: {op: gemm}, pin: torch.gemm.bf16}\n").warnings == ()
    (warning,) = load(head + "  - {id: a, match: {op: gemm}, restrict_to: torch.gemm.bf16}\n").warnings
    assert str(warning).startswith("p.yaml:2:22: it also relaxes restrictions")


def test_a_file_without_a_schema_is_read_and_told_so():
    (warning,) = load("rules: []\n").warnings
    assert "no schema" in warning.message


def test_op_aliases_hold_in_matches_and_in_ids():
    (one,) = load(rules("{id: a, match: {op: layernorm}, pin: torch.layernorm}")).policy.rules
    assert one.match == match({"op": "layer_norm"})
    assert one.restriction.kernels == ("torch.layer_norm",)


def test_nested_facts_are_dotted_facts():
    text = "{id: a, match: {op: gemm, device: {vendor: nvidia, arch: '>=sm90'}}, prefer: 'torch.*'}"
    (one,) = load(rules(text)).policy.rules
    assert one.match == match({"op": "gemm", "device.vendor": "nvidia", "device.arch": ">=sm90"})


def test_a_rule_without_id_is_named_by_its_place():
    assert load(rules("{match: {op: gemm}, prefer: 'torch.*'}")).policy.rules[0].id == "rules[0]"


def test_the_file_lies_upon_the_shipped_default_policy():
    policy = load("schema: v1\ndefaults: {ties: [acme, torch]}\n").policy
    assert policy.defaults.ties[:3] == ("acme", "torch", "cuda")
    assert policy.fallback == "warn"


# Files


def test_a_missing_file_is_a_policy_error(tmp_path):
    with pytest.raises(PolicyError, match=r"nowhere.yaml:1:1: the policy file cannot be read: No such file"):
        load_policy(tmp_path / "nowhere.yaml", catalog=small_catalog())


def test_a_folder_is_a_policy_error(tmp_path):
    with pytest.raises(PolicyError, match="cannot be read: Is a directory"):
        load_policy(tmp_path, catalog=small_catalog())


def test_a_path_with_a_nul_byte_is_a_policy_error():
    with pytest.raises(PolicyError, match="cannot be read"):
        load_policy("a\0b", catalog=small_catalog())


def test_a_file_of_50_mb_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate(50_000_000)
    started = time.process_time()
    with pytest.raises(PolicyError, match=r"50,000,000 bytes; a policy file may have 4,194,304"):
        load_policy(path, catalog=small_catalog())
    assert time.process_time() - started < 0.5


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")
def test_a_file_without_end_is_refused():
    with pytest.raises(PolicyError, match="may have 4,194,304"):
        load_policy("/dev/zero", catalog=small_catalog())


def test_without_a_catalog_the_installed_plug_ins_are_asked():
    assert parse_policy(rules("{id: a, match: {op: gemm}, numerics: any}")).policy.rules[0].id == "a"
