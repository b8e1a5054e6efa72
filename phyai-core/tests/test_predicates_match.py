"""Reading `match:` mappings: every form, and every way to get one wrong."""

import pickle

import pytest
from phyai.facts import CORE_FACTS, FactKind, Facts, FactSpec, Vocabulary
from phyai.predicates import FALSE, TRUE, Compare, OneOf, PredicateErrors, all_of, any_of, match, none_of

VOCABULARY = Vocabulary(
    (
        *CORE_FACTS,
        FactSpec("shape.M", FactKind.NUMBER, "rows", dynamic=True, minimum=1),
        FactSpec("shape.K", FactKind.NUMBER, "inputs", minimum=1),
        FactSpec("dtype.x", FactKind.NAME, "", values=("bf16", "fp16", "fp32")),
        FactSpec("attrs.eps", FactKind.NUMBER, "", integer=False),
        FactSpec("attrs.activation", FactKind.NAME, "", values=("silu", "gelu", "gelu_tanh")),
        FactSpec("attrs.gated", FactKind.FLAG, ""),
    )
)
OPS = {
    "gemm": "gemm",
    "rms_norm": "rms_norm",
    "rmsnorm": "rms_norm",
    "layer_norm": "layer_norm",
    "layernorm": "layer_norm",
}


def problems(mapping, vocabulary=VOCABULARY, ops=OPS):
    with pytest.raises(PredicateErrors) as caught:
        match(mapping, vocabulary, ops=ops)
    return caught.value.problems


@pytest.mark.parametrize(
    ("mapping", "yes", "no"),
    [
        ({"shape.M": 64}, [64], [63, None]),
        ({"shape.M": "64"}, [64], [65]),
        ({"shape.M": [1, 8]}, [1, 8], [2, None]),
        ({"shape.M": "<=64"}, [64, 1], [65, None]),
        ({"shape.M": "< 64"}, [63], [64]),
        ({"shape.M": ">1"}, [2], [1, None]),
        ({"shape.M": "64..512"}, [64, 512], [63, 513]),
        ({"shape.M": "%16"}, [16, 32], [8, None]),
        ({"shape.M": ">=8,<=64,%8"}, [8, 64], [7, 12, 72]),
        ({"shape.M": ["<=4", "%16"]}, [3, 32], [5]),
        ({"shape.M": "!=3"}, [2], [3, None]),
        ({"attrs.eps": "1e-6"}, [1e-6], [1e-5]),
        ({"attrs.eps": "<=1e-5"}, [1e-6], [1e-4]),
        ({"role": "expert"}, ["expert"], ["prefix", None]),
        ({"role": ["expert", "prefix"]}, ["prefix"], ["vision"]),
        ({"layer": "expert.*.mlp"}, ["expert.0.mlp", "expert..mlp"], ["expert.0.mlp.x", "Expert.0.mlp"]),
        ({"layer": "l?[0-3][!a]"}, ["lx0b"], ["lx4b", "lx0a", "x0b"]),
        ({"layer": ["vision.*", "head"]}, ["vision.a", "head"], ["heads"]),
        ({"role": "*"}, ["anything"], [None]),
        ({"role": None}, [None], ["expert"]),
        ({"role": [None, "expert"]}, [None, "expert"], ["prefix"]),
        ({"dtype.x": "bfloat16"}, ["bf16"], ["fp16"]),
        ({"dtype.x": "torch.float16"}, ["fp16"], ["bf16"]),
        ({"attrs.gated": True}, [True], [False, None]),
        ({"model.tags": "debug"}, [frozenset({"debug", "x"})], [frozenset({"x"}), None]),
        ({"model.tags": ["debug", "x"]}, [frozenset({"x"})], [frozenset({"y"}), frozenset()]),
        ({"device.arch": ">=sm90"}, ["sm90", "sm100", "sm121"], ["sm89", "gfx942", None]),
        ({"device.arch": "<sm90"}, ["sm89"], ["sm90", "gfx90a"]),
        ({"device.arch": ["sm90", "sm_100"]}, ["sm90", "sm100"], ["sm103"]),
        ({"device.arch": ">=gfx90a"}, ["gfx942", "gfx90a", "gfx1100"], ["gfx908", "sm121"]),
        ({"lib.flashinfer": ">=0.7"}, ["0.7", "0.10.1", "0.7.0+cu128"], ["0.6.12", "0.7rc1", None]),
        ({"lib.flashinfer": ">=0.7,<0.9"}, ["0.8.2"], ["0.9", "0.9rc1", "0.6"]),
        ({"lib.flashinfer": "0.7.*"}, ["0.7", "0.7.4", "0.7rc1"], ["0.8", "0.8.dev1"]),
        ({"lib.flashinfer": "~=0.7.1"}, ["0.7.1", "0.7.9"], ["0.7", "0.8"]),
        ({"lib.flashinfer": "!=0.7.1"}, ["0.7.2"], ["0.7.1", "0.7.1+cu12", None]),
        ({"lib.flashinfer": ">0.7"}, ["0.7.1", "0.8"], ["0.7.post1", "0.7"]),
        ({"lib.flashinfer": None}, [None], ["0.1"]),
    ],
)
def test_a_value_accepts_exactly_what_it_says(mapping, yes, no):
    (fact,) = mapping
    predicate = match(mapping, VOCABULARY)
    assert [v for v in yes if not predicate.holds({} if v is None else {fact: v})] == []
    assert [v for v in no if predicate.holds({} if v is None else {fact: v})] == []
    assert match(predicate.to_yaml(), VOCABULARY) == predicate


@pytest.mark.parametrize(
    "specifier", [">=0.7", "<0.7", "<=0.7.1", "==0.7.1", "!=0.7.1", "~=0.7.1", "==0.7.*", "!=0.7.*"]
)
def test_versions_agree_with_packaging(specifier):
    from packaging.specifiers import SpecifierSet

    predicate = match({"lib.x": specifier})
    for version in [
        "0.6",
        "0.7.dev1",
        "0.7a1",
        "0.7",
        "0.7+cu128",
        "0.7.post1",
        "0.7.1rc1",
        "0.7.1",
        "0.7.1+x",
        "0.7.2",
        "0.8.dev0",
        "0.8",
        "1!0.1",
    ]:
        assert predicate.holds({"lib.x": version}) is SpecifierSet(specifier).contains(version, prereleases=True), (
            version
        )


def test_nested_maps_flatten_and_mix_with_dotted_keys():
    nested = match(
        {"device": {"vendor": "nvidia", "arch": ">=sm100"}, "quant": {"fields.a": "x", "fields": {"b": "y"}}}
    )
    flat = match({"device.vendor": "nvidia", "device.arch": ">=sm100", "quant.fields.a": "x", "quant.fields.b": "y"})
    assert nested == flat


def test_combinators():
    p = match(
        {
            "op": "attention",
            "any_of": [{"model.family": "pi05", "attrs.layout": "ragged"}, {"model.family": ["pi0", "gr00t"]}],
            "none_of": [{"dtype.q": "fp32"}, {"role": "vision", "shape.M": "<=8"}],
            "all_of": [{"device.type": "cuda"}],
            "when": {"if": {"attrs.bias": True}, "then": {"dtype.bias": "fp32"}},
        }
    )
    call = {
        "op": "attention", "model.family": "pi0", "dtype.q": "bf16", "role": "vision", "shape.M": 9,
        "device.type": "cuda", "attrs.bias": False,
    }  # fmt: skip
    assert p.holds(call)
    for change in [
        {"model.family": "pi05"}, {"dtype.q": "fp32"}, {"shape.M": 8}, {"device.type": "cpu"}, {"attrs.bias": True},
    ]:  # fmt: skip
        assert not p.holds({**call, **change}), change
    assert p.holds({**call, "attrs.bias": True, "dtype.bias": "fp32"})


def test_negation_of_a_comparison_with_an_absent_fact_is_false_too():
    assert not match({"none_of": [{"dtype.q": "fp32"}]}).holds({})
    assert not match({"none_of": [{"shape.M": "%8"}]}).holds({})
    assert not match({"when": {"if": {"attrs.bias": True}, "then": {"dtype.bias": "fp32"}}}).holds({})


def test_negation_of_absence_is_presence():
    present = match({"none_of": [{"dtype.mask": None}]})
    assert present.holds({"dtype.mask": "bool"})
    assert not present.holds({})
    assert none_of(present) == match({"dtype.mask": None})


def test_another_vendor_is_not_at_least_sm90_and_saying_so_is_true():
    assert match({"none_of": [{"device.arch": ">=sm90"}]}).holds({"device.arch": "gfx942"})


def test_equal_conditions_are_equal_and_hash_alike_however_they_are_written():
    pairs = [
        ({"op": "gemm", "role": "expert"}, {"role": "expert", "op": "gemm"}),
        ({"role": ["a", "b"]}, {"role": ["b", "a", "b"]}),
        ({"any_of": [{"role": "a"}, {"role": "b"}]}, {"role": ["a", "b"]}),
        ({"none_of": [{"role": "a"}, {"role": "b"}]}, {"none_of": [{"role": ["a", "b"]}]}),
        ({"shape.M": "64..512"}, {"all_of": [{"shape.M": "<=512"}, {"shape.M": ">=64"}]}),
        ({"none_of": [{"shape.M": "<=64"}]}, {"shape.M": ">64"}),
        ({"none_of": [{"attrs.gated": True}]}, {"attrs.gated": False}),
        ({"all_of": [{"op": "gemm"}, {"op": "gemm"}]}, {"op": "gemm"}),
        ({"shape.M": 64.0}, {"shape.M": "64"}),
        ({"lib.x": "==1.0"}, {"lib.x": "1.0"}),
    ]
    for left, right in pairs:
        assert match(left) == match(right), (left, right)
        assert hash(match(left)) == hash(match(right))


def test_true_and_false_are_units():
    p = match({"op": "gemm"})
    assert all_of() == TRUE == match({})
    assert any_of() == FALSE == none_of(TRUE)
    assert all_of(p, TRUE) == p == any_of(p, FALSE)
    assert all_of(p, FALSE) == FALSE
    assert any_of(p, TRUE) == TRUE


def test_predicates_pickle():
    p = match({"op": "gemm", "any_of": [{"layer": "*.mlp"}, {"lib.x": ">=1"}], "none_of": [{"shape.K": "%8"}]})
    copy = pickle.loads(pickle.dumps(p))
    assert copy == p
    assert hash(copy) == hash(p)
    assert copy.holds({"op": "gemm", "layer": "a.mlp", "shape.K": 7})


def test_kinds_without_a_vocabulary():
    assert match({"attrs.a": 3}) == OneOf("attrs.a", FactKind.NUMBER, (3,))
    assert match({"attrs.a": "<=3"}) == Compare("attrs.a", FactKind.NUMBER, "<=", 3)
    assert match({"attrs.a": True}) == OneOf("attrs.a", FactKind.FLAG, (True,))
    assert match({"attrs.a": "gelu"}) == OneOf("attrs.a", FactKind.NAME, ("gelu",))
    assert match({"parts.gate_up.quant.group_size": "%32"}).holds({"parts.gate_up.quant.group_size": 64})
    assert match({"parts.down.dtype.x": "half"}).holds({"parts.down.dtype.x": "fp16"})


def test_op_names_go_through_their_other_spellings():
    assert match({"op": "layernorm"}, ops=OPS) == match({"op": "layer_norm"})
    assert match({"op": ["rmsnorm", "gemm"]}, ops=OPS) == match({"op": ["gemm", "rms_norm"]})


@pytest.mark.parametrize(
    ("mapping", "path", "at_key", "words", "hint"),
    [
        ({"devic.arch": "sm90"}, ("devic.arch",), True, "nothing declares", "device.arch"),
        ({"device": {"archh": "sm90"}}, ("device", "archh"), True, "device.archh", "device.arch"),
        ({"anyof": [{}]}, ("anyof",), True, "anyof", "any_of"),
        ({"device.arch": "sm9O"}, ("device.arch",), False, "no architecture", "sm90"),
        ({"device.arch": ">=sm9o"}, ("device.arch",), False, "no architecture", "sm90"),
        ({"device.arch": "90"}, ("device.arch",), False, "no architecture", "sm90"),
        ({"device.arch": 90}, ("device.arch",), False, "architecture", "write sm90"),
        ({"device.arch": 9.0}, ("device.arch",), False, "architecture", "write sm90"),
        ({"device.type": "gpu"}, ("device.type",), False, "it is one of cpu, cuda", None),
        ({"op": "RMS_Norm"}, ("op",), False, "'RMS_Norm'", "rms_norm"),
        ({"device.vendor": "Nvidia"}, ("device.vendor",), False, "'Nvidia'", "nvidia"),
        ({"quant.weight": "in4"}, ("quant.weight",), False, "'in4'", "int4"),
        ({"device.arch": "~=sm90"}, ("device.arch",), False, "versions", None),
        ({"op": "rms_nrom"}, ("op",), False, "rms_nrom", "rms_norm"),
        ({"op": "conv*"}, ("op",), False, "conv*", None),
        ({"shape.M": "<=sixty"}, ("shape.M",), False, "'sixty'", None),
        ({"shape.M": "=<60"}, ("shape.M",), False, "number", "`<=60`"),
        ({"shape.M": "64-512"}, ("shape.M",), False, "number", "`64..512`"),
        ({"shape.M": "512..64"}, ("shape.M",), False, "empty", "64..512"),
        ({"shape.M": "<=6O"}, ("shape.M",), False, "'6O'", "`<=60`"),
        ({"shape.M": "%0"}, ("shape.M",), False, "positive integer", None),
        ({"shape.M": "%1.5"}, ("shape.M",), False, "positive integer", None),
        ({"shape.M": True}, ("shape.M",), False, "number, not true", None),
        ({"shape.M": float("nan")}, ("shape.M",), False, "finite", None),
        ({"shape.M": "1e999"}, ("shape.M",), False, "out of range", None),
        ({"shape.M": []}, ("shape.M",), False, "empty list", None),
        ({"shape.M": [1, [2]]}, ("shape.M", 1), False, "list", None),
        ({"shape.M": ""}, ("shape.M",), False, "characters", None),
        ({"dtype.x": "bf61"}, ("dtype.x",), False, "bf61", "bf16"),
        ({"dtype.x": ["bf16", "fp1"]}, ("dtype.x", 1), False, "fp1", "fp16"),
        ({"attrs.activation": "sillu"}, ("attrs.activation",), False, "sillu", "silu"),
        ({"device.type": "cude"}, ("device.type",), False, "cpu, cuda", "cuda"),
        ({"attrs.gated": "yes"}, ("attrs.gated",), False, "flag", "write true"),
        ({"attrs.gated": 1}, ("attrs.gated",), False, "flag", "true"),
        ({"role": "<=expert"}, ("role",), False, "no order", None),
        ({"role": True}, ("role",), False, "name", "quotes"),
        ({"role": 1.5}, ("role",), False, "name", "quotes"),
        ({"layer": "[\x00-\uffff]"}, ("layer",), False, "too wide", None),
        ({"model.tags": "no-*"}, ("model.tags",), False, "set", None),
        ({"lib.flashinfer": 0.7}, ("lib.flashinfer",), False, "version", 'write "0.7"'),
        ({"lib.flashinfer": ">=zero"}, ("lib.flashinfer",), False, "no version", None),
        ({"lib.flashinfer": "~=1"}, ("lib.flashinfer",), False, "range of versions", None),
        ({"any_of": []}, ("any_of",), False, "list of maps", None),
        ({"none_of": {"op": "gemm"}}, ("none_of",), False, "list of maps", "none_of: [{"),
        ({"any_of": ["gemm"]}, ("any_of", 0), False, "map of facts", None),
        ({"any_of": [{"op": "gemm"}, {"op": "gem"}]}, ("any_of", 1, "op"), False, "gem", "gemm"),
        ({"device": {"any_of": [{}]}}, ("device", "any_of"), True, "move it up", None),
        ({"device": {}}, ("device",), False, "nothing is asked", None),
        ({"when": {"if": {"op": "gemm"}}}, ("when",), False, "lacks `then`", None),
        ({"when": {"if": {}, "then": {}, "else": {}}}, ("when", "else"), True, "else", None),
        ({"when": "gemm"}, ("when",), False, "when takes", None),
        ({3: "gemm"}, (3,), True, "name is text", None),
        ({"op": {1}}, ("op",), False, "set", None),
    ],
)  # fmt: skip
def test_a_mistake_is_located_and_explained(mapping, path, at_key, words, hint):
    (problem,) = problems(mapping)
    assert problem.path == path
    assert problem.at_key is at_key
    assert words in problem.message
    assert (hint is None) or hint in (problem.suggestion or "")


def test_all_mistakes_are_reported_together():
    found = problems({"devic.arch": "sm90", "shape.M": "<=sixty", "any_of": [{"op": "gem"}, {"device.arch": "sm9O"}]})
    assert [p.path for p in found] == [
        ("devic.arch",), ("shape.M",), ("any_of", 0, "op"), ("any_of", 1, "device.arch"),
    ]  # fmt: skip


def test_not_a_map():
    (problem,) = problems(["op", "gemm"])
    assert problem.path == ()


def test_a_map_that_contains_itself_is_refused():
    loop: dict = {"op": "gemm"}
    loop["any_of"] = [loop]
    assert "nested deeper" in problems(loop)[0].message


def test_a_bomb_of_aliases_is_refused():
    level = [{"op": "gemm"}] * 10
    for _ in range(9):
        level = [{"any_of": level}] * 10
    assert any("more than" in p.message for p in problems({"any_of": level}))


def test_a_dtype_that_the_op_does_not_take_is_still_a_dtype():
    assert not match({"dtype.x": "fp8"}, VOCABULARY).holds(Facts({"dtype.x": "bf16"}))


def test_conditions_of_the_earlier_system_parse():
    conditions = [
        {"op": "gemm", "device": {"vendor": "nvidia", "arch": ">=sm100"},
         "quant": {"format": "nvfp4", "layout": "128x4"}, "shape.M": "<=8"},
        {"op": "gemm", "quant.layout": "humming"},
        {"op": "layernorm", "device.vendor": "nvidia", "shape.heads": ">1",
         "when": {"if": {"attrs.bias": True}, "then": {"dtype.bias": "fp32"}}},
        {"op": "attention", "any_of": [{"model.family": "pi05", "attrs.layout": "ragged"},
                                       {"model.family": ["pi0", "gr00t"], "shape.head_dim": "%16"}],
         "none_of": [{"dtype.q": "fp32"}]},
        {"op": "activation", "model.tags": ["reference", "debug"], "attrs": {"activation": "gelu", "gated": False}},
        {"op": "gemm", "model.tags": ["no-flashinfer"]},
    ]  # fmt: skip
    for condition in conditions:
        predicate = match(condition)
        assert match(predicate.to_yaml()) == predicate
    blackwell = {"op": "gemm", "device.vendor": "nvidia", "device.arch": "sm100", "quant.format": "nvfp4",
                 "quant.layout": "128x4", "shape.M": 8}  # fmt: skip
    assert match(conditions[0]).holds(blackwell)
    assert not match(conditions[0]).holds({**blackwell, "device.arch": "sm90"})
