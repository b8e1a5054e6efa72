"""Explaining: an incomplete question is completed and says so; answers as text, JSON and HTML."""

from __future__ import annotations

import html.parser
import json

import attrs
import pytest
from fake_calls import ACT, CPU, GEMM, GPU, catalog, gemm_site, kernel, policy, rule, x
from phyai.decision import Decision
from phyai.dispatch import Dispatcher
from phyai.environment import Environment
from phyai.errors import CallError
from phyai.explain import complete, explain_call, to_html, to_text
from phyai.kernel import Band
from phyai.op import ArgSpec
from phyai.ops.conv2d import OP as CONV2D
from phyai.ops.qkv_rope_kv_write import OP as QKV
from phyai.ops.quantize_activation import OP as QUANTIZE

SPECS = (
    ArgSpec("vision.up", {"M": 768, "N": 4304, "K": 1152}, {"x": "fp32"}, facts={"role": "vision"}),
    ArgSpec("expert.up", {"M": 50, "N": 4096, "K": 1024}, {"x": "bf16"}, facts={"role": "expert"}),
    ArgSpec(
        "expert.w4", {"M": 50, "N": 4096, "K": 1024}, {"x": "bf16"}, facts={"role": "expert", "quant.weight": "int4"}
    ),
)
OPS = (
    attrs.evolve(GEMM, arg_specs=SPECS),
    attrs.evolve(ACT, arg_specs=(ArgSpec("masked", {"M": 5, "D": 8}, {"x": "bf16"}, present=("mask",)),)),
)
KERNELS = [
    kernel("a.gemm", {"shape.K": "%128"}),
    kernel("b.gemm", {"lib.fast": ">=2"}, band=Band.OPTIMIZED),
    kernel("a.act"),
]
WORLD = catalog(*KERNELS, ops=OPS)


def explain(given, op="gemm", env=GPU, rules=()) -> Decision:
    return explain_call(op, given, WORLD, policy(*rules), env)


def test_what_is_missing_comes_from_the_spec_that_agrees_best():
    d = explain({"role": "expert", "shape.M": 7})
    assert (d.facts["shape.M"], d.facts["shape.K"], d.facts["dtype.x"]) == (7, 1024, "bf16")
    assert any("from the argument spec expert.up" in a and "shape.K=1024" in a for a in d.assumptions)
    assert not any("shape.M" in a for a in d.assumptions)


def test_a_question_about_a_quantized_weight_takes_the_quantized_spec():
    d = explain({"quant.weight": "int4"})
    assert any("expert.w4" in a for a in d.assumptions)


def test_a_role_is_never_assumed():
    assert "role" not in explain({"shape.M": 768}).facts


def test_dtypes_follow_the_one_that_is_given():
    d = explain({"role": "expert", "dtype.x": "float16"})
    assert {d.facts[f"dtype.{t}"] for t in ("x", "weight", "y")} == {"fp16"}


def test_null_takes_an_optional_tensor_away():
    assert explain({}, op="act").facts["dtype.mask"] == "bool"
    assert "dtype.mask" not in explain({"dtype.mask": None}, op="act").facts


def test_attributes_and_the_capture_are_filled_in():
    d = explain({}, op="act")
    assert (d.facts["attrs.kind"], d.facts["mode.capture"]) == ("relu", False)
    assert any("mode.capture=false" in a for a in d.assumptions)
    assert not any("mode.capture" in a for a in explain({"mode.capture": True}, op="act").assumptions)


def test_nothing_is_assumed_of_what_is_given():
    given = {"shape.M": 1, "shape.N": 2, "shape.K": 128, "dtype.x": "bf16", "dtype.weight": "bf16", "dtype.y": "bf16",
             "mode.capture": False}  # fmt: skip
    assert explain(given).assumptions == ()


@pytest.mark.parametrize(
    ("op", "given", "follows"),
    [
        (CONV2D, {"shape.H": 448, "shape.W": 224}, {"shape.H_out": 448 // 14, "shape.W_out": 224 // 14}),
        (QKV, {"shape.heads": 16}, {"shape.N": (16 + 2 * 1) * 256, "attrs.heads": 16}),
        (
            QUANTIZE,
            {"shape.M": 7, "shape.K": 128, "attrs.granularity": "group", "attrs.group_size": 64},
            {"shape.S": 7, "shape.G": 2},
        ),
        (QUANTIZE, {"attrs.format": "int8"}, {"dtype.codes": "int8"}),
        (QUANTIZE, {"shape.M": 7, "shape.S": 5}, {"shape.S": 5}),  # what is given stays as it is
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_is_assumed_follows_from_what_is_given(op, given, follows):
    facts, _ = complete(op, given, catalog(kernel(f"a.{op.name}"), ops=(op,)), CPU)
    assert {name: facts[name] for name in follows} == follows


def test_what_the_environment_assumed_is_handed_on():
    env = Environment.simulated("h200", libraries=WORLD.libraries)
    env = attrs.evolve(
        env, libraries={**env.libraries, "fast": "2.0"}, assumptions=("lib.fast=2.0: not installed here",)
    )
    d = explain({"shape.M": 50}, env=env)
    assert d.kernel.id == "b.gemm"
    assert "lib.fast=2.0: not installed here" in d.assumptions


def test_an_explained_decision_is_the_one_a_site_makes():
    site = gemm_site(Dispatcher(WORLD, policy(), GPU), k=128)
    made = site.decide(M=5)
    explained = explain({name: v for name, v in made.facts.items() if not name.startswith(("device.", "lib."))})
    assert explained.kernel == made.kernel
    assert explained.candidates == made.candidates


def test_a_call_that_nothing_can_run_is_explained_too():
    d = explain({"shape.K": 100})
    assert d.kernel is None
    assert d.failure
    reasons = {c.kernel: c.reason for c in d.rejected}
    assert reasons == {
        "a.gemm": "shape.K=100 is not a multiple of 128",
        "b.gemm": "lib.fast=1.2 is not >=2",
    }


@pytest.mark.parametrize("given", [{"shape.k": 1}, {"dtype.xx": "bf16"}, {"devic.arch": "sm90"}])
def test_an_unknown_fact_is_refused_with_a_suggestion(given):
    with pytest.raises(CallError, match="did you mean"):
        explain(given)


def test_an_op_without_specs_leaves_open_what_is_not_given():
    world = catalog(kernel("a.gemm", {"shape.K": "%128"}), ops=(GEMM,))
    facts, assumptions = complete(GEMM, {"dtype.x": "bf16"}, world, CPU)
    assert "shape.K" not in facts
    assert len(assumptions) == 1
    d = explain_call("gemm", {"dtype.x": "bf16"}, world, policy(), CPU)
    assert d.rejected[0].reason == "shape.K is absent (needs a multiple of 128)"


# Showing


def test_the_text_shows_order_verdict_reason_rules_and_assumptions():
    rules = [rule("first", {"op": "gemm"}, prefer=("a.*",), line=12)]
    text = to_text(explain({"role": "expert"}, rules=rules), width=200)
    assert "gemm → a.gemm" in text
    assert "decided by capability" in text
    assert "1  a.gemm  chosen" in text
    assert "no: capability  lib.fast=1.2 is not >=2" in text
    assert "matched: first (policy.yaml:12)" in text
    assert "assumed: from the argument spec expert.up" in text
    assert "shape.K=1024" in text


def test_the_text_of_a_failure_says_so():
    assert "gemm → no kernel" in to_text(explain({"shape.K": 100}))


def test_brackets_in_reasons_are_not_markup():
    d = explain({"role": "expert", "layer": "x[bold]y"}, rules=[rule("[red]", {"op": "gemm"}, prefer=("a.*",))])
    assert "[red] (policy.yaml:1)" in to_text(d)


def test_json_is_plain_data():
    data = json.loads(json.dumps(explain({"role": "expert"}).to_json()))
    assert (data["chosen"], data["facts"]["shape.K"]) == ("a.gemm", 1024)


class Tags(html.parser.HTMLParser):
    """Every tag is closed in order, and nothing is loaded from elsewhere."""

    def __init__(self):
        super().__init__()
        self.stack, self.sources = [], []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta",):
            self.stack.append(tag)
        self.sources += [value for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def parsed(page):
    tags = Tags()
    tags.feed(page)
    assert tags.stack == []
    return tags


def test_the_page_is_well_formed_and_self_contained():
    page = to_html(explain({"role": "expert"}, rules=[rule("first", {"op": "gemm"}, prefer=("a.*",))]))
    assert parsed(page).sources == []
    assert "<script" not in page
    assert "a.gemm" in page
    assert "lib.fast=1.2 is not &gt;=2" in page


def test_the_page_of_sites_names_each():
    made = Dispatcher(WORLD, policy(), GPU)
    gemm_site(made, "expert.up", k=128).run(x(5, 128))
    gemm_site(made, "expert.<down>", k=128)
    page = to_html({site.name: site.decisions for site in made.sites}, title="π0.5")
    parsed(page)
    assert "expert.&lt;down&gt;:gemm" in page
    assert "Nothing decided yet" in page
    assert "<title>π0.5</title>" in page


def test_parts_of_a_composite_are_shown_below_it():
    world = catalog(kernel("a.gemm"), kernel("a.act"))
    d = explain_call(
        "mlp", {"shape.M": 5, "shape.K": 8, "shape.I": 16, "shape.N": 8, "dtype.x": "bf16"}, world, policy(), CPU
    )
    text = to_text(d, width=200)
    assert text.index("mlp → decomposed.mlp") < text.index("part up:") < text.index("gemm → a.gemm")
    parsed(to_html(d))
    assert "Part up" in to_html(d)


def test_a_question_that_says_how_a_weight_is_quantized_gets_the_whole_scheme():
    d = explain({"quant.weight": "int8", "quant.group_size": 128})
    assert d.facts["quant.scheme"] == "w8a16_g128"
    assert d.facts["quant.g_idx"] is False
    assert any("scheme that the other quant.* facts describe" in a and "w8a16_g128" in a for a in d.assumptions)
    assert "quant.scheme" not in explain({}).facts


def test_a_call_that_no_kernel_could_compute_is_refused_in_words_with_what_was_assumed_for_it():
    world = catalog(kernel("a.quantize_activation"), ops=(QUANTIZE,))
    given = {"shape.M": 64, "shape.K": 100, "attrs.granularity": "group", "attrs.group_size": 64}
    with pytest.raises(CallError, match=r"group_size=64 does not divide K=100.*; what was not given is that of"):
        explain_call("quantize_activation", given, world, policy(), CPU)
    fitting = explain_call("quantize_activation", {**given, "shape.K": 128}, world, policy(), CPU)
    assert fitting.kernel.id == "a.quantize_activation"
