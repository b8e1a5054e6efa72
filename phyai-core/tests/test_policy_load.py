"""Policy files that load, and every way in which one can be wrong: place, words and suggestion."""

from __future__ import annotations

import os
import time
from pathlib import Path

import attrs
import pytest
from phyai.engine import ModelPlugin
from phyai.errors import PolicyError
from phyai.install import install
from phyai.policy import Layer, NumericsDemand, Restriction, load_policy, parse_policy
from phyai.predicates import match
from policy_catalogs import small_catalog

CASES = Path(__file__).parent / "data" / "policies"


def load(text):
    return parse_policy(text, file="p.yaml", catalog=small_catalog())


def refused(text):
    with pytest.raises(PolicyError) as caught:
        load(text)
    assert str(caught.value).startswith("p.yaml: ")
    return [str(problem) for problem in caught.value.problems]


def only(text):
    (problem,) = refused(text)
    return problem


def rules(*lines):
    return "schema: phyai.kernel/v1\nrules:\n" + "".join(f"  - {line}\n" for line in lines)


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


# What the earlier system calls otherwise


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


# What is wrong with a file


def handed_refusals():
    """Pairs of a text and its problem, from the table beside the cases."""
    blocks = (CASES / "refused.txt").read_text().split("\n\n")[1:]
    return [tuple(block.strip().split("\n=> ")) for block in blocks]


@pytest.mark.parametrize(("text", "problem"), handed_refusals())
def test_a_mistake_is_named_with_its_place_and_what_to_write(text, problem):
    assert only("schema: v1\n" + text.replace("\\n", "\n") + "\n").startswith(f"p.yaml:{problem}")


@pytest.mark.parametrize("text", [text for text, _ in handed_refusals()])
def test_every_mistake_has_the_offending_text_and_a_suggestion(text):
    with pytest.raises(PolicyError) as caught:
        load("schema: v1\n" + text.replace("\\n", "\n") + "\n")
    assert all(problem.got and problem.suggestion for problem in caught.value.problems)


def test_sections_that_are_left_empty_say_nothing():
    assert load("schema: v1\ndefaults:\nrules:\noverrides:\n").policy.rules == load("schema: v1\n").policy.rules


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (rules("{id: a, match: {lib.flashinfr: '>=1'}, numerics: any}"), "no installed backend declares this library"),
        ("schema: v1\ndefaults: {ties: [tortch]}\n", "did you mean `torch`?"),
        (
            "schema: v1\nquantization: {rules: [{match: {glob: '*'}, scheme: {weight: int8}, layout: plian}]}\n",
            "no installed backend has this layout (got `plian`; did you mean `plain`?)",
        ),
    ],
)
def test_a_name_of_something_that_may_not_be_installed_is_a_warning(text, warning):
    (found,) = load(text).warnings
    assert warning in str(found)


def test_a_misspelt_kernel_is_taken_for_one_of_its_own_op():
    text = rules("{id: a, match: {op: gemm}, restrict_to: torch.gemm.fp8_skaled}")
    assert "did you mean `torch.gemm.fp8_scaled`?" in only(text)
    assert "did you mean" not in only(rules("{id: a, match: {op: gemm}, restrict_to: torch.gemm.zzzzzzzzzzz}"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [("torch.gem.*", "torch.gemm.*"), ("torch.gem.bf16", "torch.gemm.bf16"), ("*.layer_nrom", "*.layer_norm")],
)
def test_a_misspelt_op_in_a_pattern_is_named_with_the_rest_of_the_pattern(written, meant):
    text = rules(f"{{id: a, restrict_to: '{written}'}}")
    assert only(text).endswith(f"(got `{written}`; did you mean `{meant}`?)")
    (warning,) = load(rules("{id: a, prefer: 'torch.gem.*'}")).warnings
    assert warning.suggestion == "did you mean `torch.gemm.*`?"


@pytest.mark.parametrize(
    ("condition", "column", "got", "suggestion"),
    [
        ("role: exprt", 37, "exprt", "did you mean `expert`?"),
        ("role: [vision, exprt]", 46, "exprt", "did you mean `expert`?"),
        ("role: 'exprt*'", 37, "exprt*", "did you mean `expert`?"),
        ("role: zzz", 37, "zzz", "one of `expert`, `vision`"),
        ("none_of: [{role: exprt}]", 48, "exprt", "did you mean `expert`?"),
    ],
)
def test_a_role_that_no_installed_model_has_is_a_warning_with_the_nearest(condition, column, got, suggestion):
    text = rules(f"{{id: a, match: {{op: gemm, {condition}}}, numerics: any}}")
    (warning,) = parse_policy(text, file="p.yaml", catalog=with_model()).warnings
    assert str(warning.location) == f"p.yaml:3:{column}"
    assert (warning.message, warning.got, warning.suggestion) == ("no installed model has such a role", got, suggestion)


@pytest.mark.parametrize("condition", ["expert", "[expert, vision]", "'exp*'", "'*'", "null"])
def test_roles_of_models_are_no_news_and_without_models_none_is(condition):
    text = rules(f"{{id: a, match: {{op: gemm, role: {condition}}}, numerics: any}}")
    assert parse_policy(text, catalog=with_model()).warnings == ()
    assert load(rules("{id: a, match: {op: gemm, role: exprt}, numerics: any}")).warnings == ()


def with_model():
    model = ModelPlugin("arm", "", "arm:Args", "arm:load", roles=("vision", "expert"))
    return attrs.evolve(small_catalog(), models=(model,))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "p.yaml:1:1: the file says nothing (got `null`; begin with `schema: phyai.kernel/v1`)"),
        ("- a\n", "p.yaml:1:1: a policy file is a mapping (got `[a]`; begin with `schema: phyai.kernel/v1`)"),
        ("schema: phyai.kernel/v2\n", "p.yaml:1:9: a schema that this version does not read (got `phyai.kernel/v2`;"),
        ("schema: [v1]\n", "p.yaml:1:9: a schema that this version does not read (got `[v1]`;"),
    ],
)
def test_a_file_without_a_readable_head(text, problem):
    assert only(text).startswith(problem)


def test_ids_are_unique_over_rules_and_overrides():
    text = rules("{id: a, numerics: any}") + "overrides:\n  - {id: a, match: {op: gemm}, use: torch.gemm.bf16}\n"
    assert only(text) == "p.yaml:5:10: an id that line 3 has already (got `a`; ids are unique in a file)"


def test_a_problem_of_the_quantization_section_has_its_place():
    text = "schema: v1\nquantization:\n  method: rtn\n  rules:\n    - match: {glob: '*'}\n      schem: null\n"
    assert any(problem.startswith("p.yaml:6:7: unknown key (got `") for problem in refused(text))


def test_an_unknown_kernel_in_prefer_is_a_warning():
    (warning,) = load(rules("{id: a, match: {op: gemm}, prefer: [torch.gemm.bf61, torch.gemm.bf16]}")).warnings
    assert str(warning).startswith(
        "p.yaml:3:41: backend `torch` has no such kernel (got `torch.gemm.bf61`; did you mean"
    )


@pytest.mark.parametrize("effect", ["pin: acme.gemm.fast", "restrict_to: ['acme.*']", "prefer: acme.gemm.fast"])
def test_a_kernel_of_an_absent_backend_names_what_to_install(effect):
    (warning,) = load(rules(f"{{id: a, match: {{op: gemm}}, {effect}}}")).warnings
    assert (warning.message, warning.suggestion) == (
        "backend `acme` is not installed",
        "install phyai-backend-acme (see Install in PhyAI's README)",
    )


def test_a_misspelt_backend_is_named_beside_what_to_install():
    (warning,) = load(rules("{id: a, match: {op: gemm}, prefer: tocrh.gemm.bf16}")).warnings
    assert warning.suggestion == "install phyai-backend-tocrh (see Install in PhyAI's README), or did you mean `torch`?"


def test_params_for_a_kernel_that_is_not_here_are_kept():
    (one,) = load(rules("{id: a, match: {op: gemm}, pin: acme.gemm.fast, params: {tile: [64, 64]}}")).policy.rules
    assert one.params == {"tile": [64, 64]}


def test_a_part_of_a_composite_op_may_be_named_in_a_rule_on_the_op():
    assert load(rules("{id: a, match: {op: gated_mlp}, restrict_to: 'torch.gemm.*'}")).policy.rules[0].id == "a"


def test_many_problems_end_at_a_hundred():
    assert len(refused(rules(*["{nope: 1}"] * 1000))) == 100


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
