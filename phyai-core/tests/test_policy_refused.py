"""Every way in which a policy can be wrong: place, words and suggestion."""

from __future__ import annotations

import attrs
import pytest
from phyai.engine import ModelPlugin
from phyai.errors import PolicyError
from phyai.policy import parse_policy
from policy_catalogs import small_catalog
from policy_texts import CASES, load, only, refused, rules


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
