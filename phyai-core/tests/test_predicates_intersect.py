"""The intersection against brute force over small domains, exact both ways."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.facts import FactKind, Facts
from phyai.op import Attr, Dim, Op, Tensor
from phyai.predicates import FALSE, TRUE, Signature, all_of, any_of, intersect, match, none_of
from predicate_domains import VALUES, VOCABULARY, calls, mappings, narrowed


@st.composite
def pairs(draw):
    """Two conditions over at most three facts, so that brute force can enumerate all calls."""
    facts = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True))
    literal = narrowed(facts)
    return match(draw(mappings(literal)), VOCABULARY), match(draw(mappings(literal)), VOCABULARY)


def in_domain(facts):
    for name, value in facts.items():
        spec = VOCABULARY.find(name)
        if spec.kind is FactKind.NUMBER:
            assert value >= spec.minimum
            assert not spec.integer or isinstance(value, int)
        assert spec.values is None or value in spec.values
        assert value != ""


@settings(max_examples=200, deadline=None)
@given(pairs())
def test_a_witness_exists_exactly_when_a_call_does(pair):
    p, q = pair
    names = sorted(p.facts | q.facts)
    found = intersect(p, q, vocabulary=VOCABULARY, implications=())
    if found is None:
        assert [c for c in calls(names) if p.holds(c) and q.holds(c)] == []
    else:
        assert isinstance(found, Facts)
        assert p.holds(found)
        assert q.holds(found)
        in_domain(found)


@settings(max_examples=75, deadline=None)
@given(st.data())
def test_what_an_architecture_says_of_its_device_is_respected(data):
    literal = narrowed(["device.arch", "device.vendor", "device.type"])
    p, q = (match(data.draw(mappings(literal, 1)), VOCABULARY) for _ in range(2))
    names = ["device.arch", "device.vendor", "device.type"]

    def real(call):
        arch = call.get("device.arch", "")
        if arch.startswith("sm"):
            return call.get("device.vendor") == "nvidia" and call.get("device.type") == "cuda"
        return not arch.startswith("gfx") or call.get("device.vendor") == "amd"

    found = intersect(p, q, vocabulary=VOCABULARY)
    if found is None:
        assert [c for c in calls(names) if real(c) and p.holds(c) and q.holds(c)] == []
    else:
        assert p.holds(found)
        assert q.holds(found)
        assert real(found)


GEMM = Op(
    "gemm", "y = x @ weight.T",
    (Tensor("x", ("...M", "K"), dtypes=("bf16", "fp16")), Tensor("weight", ("N", "K"), "weight"),
     Tensor("bias", ("N",), "weight", optional=True), Tensor("y", ("...M", "N"), "output")),
    (Dim("M", "", dynamic=True), Dim("N", ""), Dim("K", "")),
)  # fmt: skip
NORM = Op(
    "rms_norm", "y = x / rms(x)", (Tensor("x", ("...M", "D"), dtypes=("fp32",)), Tensor("y", ("...M", "D"), "output")),
    (Dim("M", "", dynamic=True), Dim("D", "")), (Attr("eps", FactKind.NUMBER, 1e-6, ""),),
)  # fmt: skip
SIGNATURES = {op.name: Signature.of(op) for op in (GEMM, NORM)}
OP_VALUES = {
    "op": ["gemm", "rms_norm", ["gemm", "rms_norm"], "*_norm"],
    "shape.M": ["<=3", "%2", None],
    "shape.D": ["%2", ">1", None],
    "shape.K": [1, "!=1", None],
    "dtype.x": ["bf16", "fp32", None],
    "dtype.bias": ["bf16", None],
    "attrs.eps": ["<=1", None],
}


def calls_of_ops(names):
    free = {"shape.M": range(1, 7), "shape.D": range(1, 5), "shape.K": range(1, 3), "attrs.eps": [0, 1, 2]}
    for op, signature in SIGNATURES.items():
        axes = []
        for name in names:
            if name == "op":
                axes.append([op])
            elif name not in signature.declared:
                axes.append([None])
            else:
                values = [*(signature.declared[name].values or free[name])]
                axes.append(values if name in signature.defaults else [None, *values])
        for values in itertools.product(*axes):
            yield {n: v for n, v in zip(names, values, strict=True) if v is not None}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_witness_satisfies_the_ops_signature(data):
    literal = st.sampled_from([(fact, value) for fact, values in OP_VALUES.items() for value in values])
    p, q = (match(data.draw(mappings(literal, 1))) for _ in range(2))
    names = sorted(p.facts | q.facts | {"op"})
    found = intersect(p, q, signatures=SIGNATURES)
    if found is None:
        assert [c for c in calls_of_ops(names) if p.holds(c) and q.holds(c)] == []
        return
    assert p.holds(found)
    assert q.holds(found)
    signature = SIGNATURES[found["op"]]
    owned = {name for name in found if name.startswith(("shape.", "dtype.", "attrs."))}
    assert owned <= set(signature.declared)
    assert set(signature.defaults) <= owned
    assert all(signature.declared[n].values is None or found[n] in signature.declared[n].values for n in owned)


def test_a_signature_requires_what_every_call_carries():
    assert set(SIGNATURES["gemm"].defaults) == {"shape.M", "shape.N", "shape.K", "dtype.x", "dtype.weight"}
    assert set(SIGNATURES["gemm"].declared) == {*SIGNATURES["gemm"].defaults, "dtype.bias", "dtype.y"}


@pytest.mark.parametrize(
    ("one", "other", "witness"),
    [
        ({"op": "gemm", "role": "expert"}, {"op": "gemm", "quant.layout": "humming"},
         {"op": "gemm", "role": "expert", "quant.layout": "humming"}),
        ({"op": "gemm", "shape.M": "<=64"}, {"op": "gemm", "shape.M": ">64", "device.arch": ">=sm90"}, None),
        ({"shape.M": ">64", "device.arch": ">=sm90"}, {"shape.M": ">64", "device.arch": "<sm90"}, None),
        ({"op": "rms_norm", "none_of": [{"shape.D": "%8"}]}, {"op": "rms_norm", "shape.D": "%16"}, None),
        ({"shape.D": "%6"}, {"shape.D": ">=10", "none_of": [{"shape.D": "%4"}, {"shape.D": 18}]}, {"shape.D": 30}),
        ({"shape.M": ">3"}, {"shape.M": "<4"}, None),
        ({"attrs.window": ">3"}, {"attrs.window": "<4"}, {"attrs.window": 3.5}),
        ({"model.tags": "a"}, {"none_of": [{"model.tags": "b"}]}, {"model.tags": frozenset("a")}),
        ({"model.tags": ["a", "b"]}, {"none_of": [{"model.tags": ["a", "b"]}]}, None),
        ({"layer": "expert.*"}, {"layer": "*.mlp"}, {"layer": "expert.mlp"}),
        ({"layer": "a*"}, {"layer": "b*"}, None),
        ({"device.arch": ">=sm90"}, {"device.vendor": "amd"}, None),
        ({"device.arch": ">=sm90"}, {"device.arch": ">=gfx90a"}, None),
        ({"lib.x": ">=1.2"}, {"lib.x": "<1.2"}, None),
        ({"lib.x": ">1.2"}, {"lib.x": "<1.2.1"}, {"lib.x": "1.2.0.0.1.dev0"}),
        ({"role": None}, {"role": "*"}, None),
        ({"role": None}, {"op": "gemm"}, {"op": "gemm"}),
    ],
)  # fmt: skip
def test_known_pairs(one, other, witness):
    found = intersect(match(one), match(other))
    assert found == (None if witness is None else Facts(witness))


def test_an_op_that_nothing_names_is_found_by_what_it_declares():
    found = intersect(match({"shape.D": "%8"}), TRUE, signatures=SIGNATURES)
    assert found is not None
    assert found["op"] == "rms_norm"
    assert intersect(match({"shape.D": "%8"}), match({"shape.K": 4}), signatures=SIGNATURES) is None


def test_an_op_without_a_signature_may_carry_anything():
    found = intersect(match({"op": "theirs", "shape.Q": 3}), TRUE, signatures=SIGNATURES)
    assert found == Facts({"op": "theirs", "shape.Q": 3})


def test_given_narrows_the_question():
    p, q = match({"op": "gemm", "shape.M": "<=64"}), match({"op": "gemm", "shape.M": ">=8"})
    assert intersect(p, q, given=match({"shape.M": "%48"})) == Facts({"op": "gemm", "shape.M": 48})
    assert intersect(p, q, given=match({"shape.M": "%65"})) is None


def test_the_units():
    assert intersect(TRUE, TRUE) == Facts()
    assert intersect(TRUE, FALSE) is None


def test_many_coprime_exclusions_are_searched_quickly():
    primes = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
    p = none_of(*(match({"shape.M": f"%{prime}"}) for prime in primes))
    assert intersect(p, match({"shape.M": ">1"})) == Facts({"shape.M": 31})


def test_alternatives_that_cannot_meet_are_searched_out():
    pigeons = range(4)
    holes = [any_of(*(match({f"attrs.in_{p}_{h}": True}) for h in range(3))) for p in pigeons]
    apart = [
        none_of(match({f"attrs.in_{p}_{h}": True, f"attrs.in_{q}_{h}": True}))
        for h in range(3)
        for p, q in itertools.combinations(pigeons, 2)
    ]
    assert intersect(all_of(*holes), all_of(*apart)) is None
