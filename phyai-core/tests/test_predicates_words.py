"""The words in which a predicate says why it does not hold."""

import pytest
from phyai.predicates import match


@pytest.mark.parametrize(
    ("mapping", "facts", "words"),
    [
        ({"shape.K": "%16"}, {"shape.K": 100}, "shape.K=100 is not a multiple of 16"),
        ({"none_of": [{"shape.D": "%8"}]}, {"shape.D": 16}, "shape.D=16 is a multiple of 8, must not be"),
        ({"shape.M": "<=64"}, {"shape.M": 65}, "shape.M=65 is not <= 64"),
        ({"shape.M": 64}, {"shape.M": 65}, "shape.M=65 is not 64"),
        ({"shape.M": [1, 8]}, {"shape.M": 2}, "shape.M=2 is not one of 1, 8"),
        ({"shape.M": "64..512"}, {}, "shape.M is absent (needs >= 64 and <= 512)"),
        ({"device.arch": ">=sm90"}, {"device.arch": "sm80"}, "device.arch=sm80 is not >= sm90"),
        ({"device.arch": ">=sm90"}, {}, "device.arch is absent (needs >= sm90)"),
        ({"none_of": [{"device.arch": ">=sm90"}]}, {"device.arch": "sm90"}, "device.arch=sm90 is >= sm90, must not be"),
        ({"device.arch": ">=sm90"}, {"device.arch": "H200"}, "device.arch=H200 is not an architecture"),
        ({"lib.flashinfer": ">=0.7"}, {}, "lib.flashinfer is not installed (needs >=0.7)"),
        ({"lib.flashinfer": ">=0.7"}, {"lib.flashinfer": "0.6.1"}, "lib.flashinfer=0.6.1 is not >=0.7"),
        ({"lib.flashinfer": ">=0.7"}, {"lib.flashinfer": "dev"}, "lib.flashinfer=dev is not a version"),
        ({"lib.flashinfer": "*"}, {}, "lib.flashinfer is not installed, must be present"),
        ({"dtype.mask": None}, {"dtype.mask": "bool"}, "dtype.mask=bool is present, must be absent"),
        ({"none_of": [{"dtype.mask": None}]}, {}, "dtype.mask is absent, must be present"),
        ({"dtype.x": ["bf16", "fp16"]}, {"dtype.x": "fp32"}, "dtype.x=fp32 is not one of bf16, fp16"),
        ({"dtype.x": "bf16"}, {}, "dtype.x is absent (needs bf16)"),
        ({"none_of": [{"dtype.q": "fp32"}]}, {"dtype.q": "fp32"}, "dtype.q=fp32 is excluded"),
        ({"none_of": [{"dtype.q": "fp32"}]}, {}, "dtype.q is absent (needs other than fp32)"),
        ({"attrs.gated": True}, {"attrs.gated": False}, "attrs.gated=false is not true"),
        ({"layer": "*.mlp"}, {"layer": "a.attn"}, "layer=a.attn does not match *.mlp"),
        ({"none_of": [{"layer": "*.mlp"}]}, {"layer": "a.mlp"}, "layer=a.mlp matches *.mlp, must not"),
        ({"model.tags": "debug"}, {"model.tags": frozenset({"b", "a"})}, "model.tags={a, b} lacks debug"),
        ({"model.tags": ["x", "y"]}, {"model.tags": frozenset()}, "model.tags={} lacks one of x, y"),
        ({"none_of": [{"model.tags": "a"}]}, {"model.tags": frozenset({"a"})}, "model.tags={a} has a, must not"),
        ({"op": "gemm", "shape.K": "%8"}, {"op": "rope", "shape.K": 9},
         "op=rope is not gemm; shape.K=9 is not a multiple of 8"),
        ({"any_of": [{"role": "expert"}, {"shape.M": "<=8", "op": "gemm"}]}, {"role": "head", "shape.M": 9, "op": "a"},
         "none of 2 alternatives holds: (1) role=head is not expert; (2) shape.M=9 is not <= 8 and op=a is not gemm"),
        ({"none_of": [{}]}, {}, "it can never hold"),
    ],
)  # fmt: skip
def test_why_not(mapping, facts, words):
    predicate = match(mapping)
    assert predicate.why_not(facts) == words
    assert not predicate.holds(facts)


def test_no_words_where_it_holds():
    predicate = match({"any_of": [{"role": "expert"}, {"op": "gemm"}], "shape.M": "<=8"})
    assert predicate.why_not({"op": "gemm", "shape.M": 8}) is None


def test_a_predicate_reads_as_a_sentence():
    predicate = match({"op": "gemm", "shape.K": "%16", "any_of": [{"dtype.x": ["bf16", "fp16"]}, {"lib.x": ">=1"}]})
    assert (
        str(predicate)
        == "op is gemm and shape.K is a multiple of 16 and (dtype.x is one of bf16, fp16 or lib.x is >=1)"
    )
