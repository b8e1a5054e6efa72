"""Plans: which rule reaches which layer; the policy's quantization section, and every way it can be wrong."""

import pytest
from phyai.quant import Matcher, QuantPlan, QuantPolicyError, QuantRule, QuantScheme, TensorQuant, plan_from_policy
from phyai.quant.regex import check

A, B = QuantScheme(TensorQuant("int4", "channel")), QuantScheme(TensorQuant("int8", "channel"))


def rule(kind, pattern, scheme=A):
    return QuantRule(((Matcher(kind, pattern),),), scheme)


@pytest.mark.parametrize(
    ("kind", "pattern", "name", "matches"),
    [
        ("name", "q_proj", "layers.0.q_proj", True),
        ("name", "layers.0.q_proj", "layers.0.q_proj", True),
        ("name", "proj", "layers.0.q_proj", False),
        ("path", "q_proj", "layers.0.q_proj", False),
        ("within", "layers.1", "layers.1.mlp.up", True),
        ("within", "layers.1", "layers.10.mlp.up", False),
        ("glob", "layers.1*", "layers.10.mlp", True),
        ("glob", "*.Mlp.*", "layers.1.mlp.up", False),
        ("regex", "layers", "layers.0.x", True),
        ("regex", "ayers", "layers.0.x", False),
        ("module_cls", "Linear", "layers.0.x", True),
        ("module_cls", "Lin", "layers.0.x", False),
    ],
)
def test_matchers(kind, pattern, name, matches):
    assert Matcher(kind, pattern).matches(name, "Linear") is matches


def test_the_first_rule_that_matches_wins():
    plan = QuantPlan((rule("name", "a", None), rule("glob", "*", A)), default=B)
    assert plan.scheme("a") is None
    assert plan.scheme("x.b") == A
    assert QuantPlan((), default=B).scheme("b") == B


def test_rules_reach_shards_and_fused_layers_alike():
    plan = QuantPlan((rule("name", "q_proj", A), rule("name", "gate_up_proj", B)))
    assert plan.shards("l.qkv_proj") == {"l.q_proj": A, "l.k_proj": None, "l.v_proj": None}
    assert plan.scheme("l.up_proj") == B
    assert plan.shards("l.gate_up_proj") == {"l.gate_proj": B, "l.up_proj": B}
    assert plan.shards("l.o_proj") == {"l.o_proj": None}


@pytest.mark.parametrize(
    "pattern",
    [
        r".*self_attn\..*_proj",
        r".*layers\.\d+\.mlp\.(gate|up)_proj$",
        r"^(?!.*experts).*$",
        r"model\.(?:a|b)?\.[0-9]{1,3}\.",
    ],
)
def test_expressions_as_configurations_hold_them_are_allowed(pattern):
    check(pattern)


def only(weight, **more):
    rule = {"match": {"glob": "*"}, "scheme": {"weight": weight, **more}}
    return plan_from_policy({"rules": [rule]}).scheme("x")


@pytest.mark.parametrize(
    ("weight", "name"),
    [
        ({"dtype": "int4", "group_size": 128}, "w4a16_g128"),
        ({"dtype": "int4", "granularity": "block", "block_shape": [1, 128], "symmetric": True}, "w4a16_g128"),
        ({"dtype": "int8"}, "w8a16_channel"),
        ({"dtype": "int8", "granularity": "per_tensor"}, "w8a16_tensor"),
        ({"dtype": "uint4", "group_size": 64, "symmetric": False}, "w4a16_g64_zp"),
        ({"dtype": "float8_e4m3fn", "granularity": "per_channel"}, "fp8_a16_channel"),
        ({"dtype": "fp8_e5m2", "block_shape": [128, 128]}, "fp8_e5m2_a16_block128x128"),
        ({"dtype": "mxfp4"}, "mxfp4_a16"),
        ({"dtype": "nvfp4", "granularity": "block", "block_shape": [1, 16]}, "nvfp4_a16"),
        ("mxfp8", "mxfp8_a16"),
    ],
)
def test_weights_as_policies_write_them(weight, name):
    assert only(weight).name == name


def test_an_inputs_channels_are_its_tokens_over_the_whole_range_of_codes():
    scheme = only({"dtype": "int8"}, input={"dtype": "int8", "granularity": "per_channel", "dynamic": True})
    assert scheme.input == TensorQuant("int8", "token", dynamic=True, scale_rule="full_range")


def test_forms_of_the_earlier_system():
    section = {
        "method": "rtn", "stage": "load", "default": None,
        "rules": [
            {
                "match": {
                    "regex": r"^decoder\.layers\.[0-9]+\.(self_attn\.(qkv_proj|o_proj)|mlp\.(gate_up_proj|down_proj))$"
                },
                "weight": {"dtype": "int4", "granularity": "block", "block_shape": [1, 128], "symmetric": True},
                "input": None,
            },
            {"match": {"name": "value_head"}, "scheme": None},
            {
                "match": {"glob": "expert.*.mlp.*"},
                "weight": {"dtype": "fp8_e4m3", "granularity": "block", "block_shape": [128, 128], "symmetric": True},
                "input": {"dtype": "fp8_e4m3", "granularity": "per_channel", "dynamic": True, "symmetric": True},
            },
        ],
    }  # fmt: skip
    plan = plan_from_policy(section)
    names = [
        "decoder.layers.0.self_attn.q_proj",
        "decoder.layers.11.mlp.up_proj",
        "value_head",
        "expert.0.mlp.down_proj",
    ]
    schemes = [plan.scheme(name) for name in names]
    assert [s.name if s else None for s in schemes] == ["w4a16_g128", "w4a16_g128", None, "fp8_a8_block128x128"]
    assert plan.method == "rtn"


def test_alternatives_and_lists_of_names():
    any_of = [{"glob": "*.a.*"}, {"name": ["x", "y"], "module_cls": "Linear"}]
    plan = plan_from_policy({"rules": [{"match": {"any_of": any_of}, "scheme": {"weight": "int8"}}]})
    assert [plan.scheme(n) is not None for n in ("m.a.b", "m.x", "y", "z")] == [True, True, True, False]


def test_no_section_changes_nothing():
    assert plan_from_policy(None).scheme("x") is None


GOOD = {"match": {"name": "x"}, "scheme": None}


@pytest.mark.parametrize(
    ("section", "path", "words"),
    [
        ({"methd": "rtn"}, ("methd",), "did you mean 'method'"),
        ({"method": "gptq"}, ("method",), "rtn"),
        ({"stage": "train"}, ("stage",), "load"),
        ({"rules": {"a": 1}}, ("rules",), "list"),
        ({"rules": [GOOD, {"match": {"name": "x"}}]}, ("rules", 1), "scheme: null"),
        ({"rules": [{"scheme": None}]}, ("rules", 0), "match"),
        ({"rules": [{"match": {}, "scheme": None}]}, ("rules", 0, "match"), "nothing"),
        ({"rules": [{"match": {"regexp": "x"}, "scheme": None}]}, ("rules", 0, "match", "regexp"), "regex"),
        ({"rules": [{"match": {"regex": "(a"}, "scheme": None}]}, ("rules", 0, "match", "regex"), "regular expression"),
        ({"rules": [{**GOOD, "weight": {"dtype": "int8"}}]}, ("rules", 0), "one of"),
        ({"default": {"weight": {"dtype": "int44"}}}, ("default", "weight", "dtype"), "did you mean 'int4'"),
        ({"default": {"input": None}}, ("default",), "needs a weight"),
        (
            {"default": {"weight": {"dtype": "int8", "group_size": 0}}},
            ("default", "weight", "group_size"),
            "at least 1",
        ),
        ({"default": {"weight": {"dtype": "int8", "granularity": "block"}}}, ("default", "weight"), "block_shape"),
        (
            {"default": {"weight": {"dtype": "int8", "granularity": "token"}}},
            ("default", "weight", "granularity"),
            "channel",
        ),
        ({"default": {"weight": {"dtype": "mxfp4", "group_size": 64}}}, ("default", "weight"), "group of 32"),
        ({"default": {"weight": {"dtype": "fp8", "symmetric": False}}}, ("default", "weight"), "no zero point"),
        (
            {"default": {"weight": "int8", "input": {"dtype": "int8", "dynamic": False}}},
            ("default", "input", "dynamic"),
            "calibration",
        ),
    ],
)
def test_problems_say_where_and_what(section, path, words):
    with pytest.raises(QuantPolicyError) as caught:
        plan_from_policy(section)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert words in str(problem)


def test_all_problems_come_in_one_report():
    with pytest.raises(QuantPolicyError) as caught:
        plan_from_policy({"method": "x", "rules": [{"scheme": None}, {"match": {"name": 3}, "scheme": None}]})
    assert [p.path for p in caught.value.problems] == [("method",), ("rules", 0), ("rules", 1, "match", "name")]
