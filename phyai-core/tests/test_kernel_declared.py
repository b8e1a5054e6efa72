"""A kernel whose fields are of the wrong kind is refused where it is declared, with the field and what it must be."""

from __future__ import annotations

import pytest
from phyai.errors import DeclarationError
from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.predicates import match

FEW, MANY = match({"shape.M": "<=64"}), match({"shape.M": ">64"})


def declared(**fields) -> Kernel:
    usual = {
        "id": "mine.gemm", "op": "gemm", "when": match({}), "prepare": "mine:prepare", "capture": Capture.SAFE,
        "numerics": Numerics(reproducible=True),
    }  # fmt: skip
    return Kernel(**{**usual, **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"when": {"shape.M": "<=64"}}, "kernel mine.gemm: when is .* must be of type Predicate"),
        ({"capture": "never"}, "capture is 'never'; it must be of type Capture"),
        ({"numerics": True}, "numerics is True; it must be of type Numerics"),
        ({"band": "general"}, "band is 'general'; it must be of type Band"),
        ({"band": 1}, "band is 1; it must be of type Band"),
        ({"rank": 0.5}, "rank is 0.5; it must be of type int"),
        ({"layouts": "plain_packed"}, "layouts is 'plain_packed'; it must be of type tuple"),  # "plain" is in that, too
        ({"specializes_on": "shape.M"}, "specializes_on is 'shape.M'; it must be of type tuple"),
        ({"bands": {"optimized": FEW}}, "bands gives 'optimized' .* maps each Band to a Predicate"),
        ({"bands": {Band.OPTIMIZED: {"shape.M": "<=64"}}}, "maps each Band to a Predicate"),
        ({"bands": [(Band.OPTIMIZED, FEW), (Band.OPTIMIZED, MANY)]}, "bands gives one band twice"),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(fields, words):
    with pytest.raises(DeclarationError, match=words):
        declared(**fields)


def test_bands_are_kept_best_first():
    bands = {Band.OPTIMIZED: FEW, Band.SPECIALIZED: MANY}
    assert declared(bands=bands).bands == ((Band.SPECIALIZED, MANY), (Band.OPTIMIZED, FEW))


@pytest.mark.parametrize(
    ("when", "band"),
    [
        ({"shape.M": "<=64"}, {"shape.M": ">64"}),
        ({"device.arch": "sm90"}, {"device.arch": ">=sm100"}),
        ({"dtype.x": "bf16"}, {"dtype.x": ["fp16", "fp32"]}),
        ({"dtype.mask": None}, {"dtype.mask": "bool"}),
        ({"shape.K": "%16"}, {"shape.K": 100}),
        ({"shape.M": "1..64"}, {"any_of": [{"shape.M": 65}, {"shape.M": ">=100", "role": "expert"}]}),
        ({"any_of": [{"attrs.format": "int8"}, {"attrs.format": "fp8"}]}, {"attrs.format": "int4"}),
        ({}, {"none_of": [{}]}),
    ],
)
def test_a_band_on_calls_that_the_kernel_does_not_claim_is_refused(when, band):
    with pytest.raises(DeclarationError, match=r"mine\.gemm: bands gives SPECIALIZED .* no call that `when` claims"):
        declared(when=match(when), bands={Band.OPTIMIZED: match({}), Band.SPECIALIZED: match(band)})


@pytest.mark.parametrize(
    ("when", "band", "call"),
    [
        ({"shape.M": "<=64"}, {"shape.M": ">=64"}, {"shape.M": 64}),
        ({}, {"shape.M": 0}, {"shape.M": 0}),
        ({"attrs.offset": "-1..2"}, {"attrs.offset": "<=-0.5"}, {"attrs.offset": -1}),
        ({"mine.slope": "<=0"}, {"mine.slope": -0.25}, {"mine.slope": -0.25}),
        ({"role": "*pert"}, {"role": "ex*"}, {"role": "expert"}),
        ({"device.type": "cuda"}, {"device.vendor": "amd", "device.arch": "gfx942"},
         {"device.type": "cuda", "device.vendor": "amd", "device.arch": "gfx942"}),
        ({"parts.up.shape.K": "%16"}, {"parts.up.shape.K": 1024}, {"parts.up.shape.K": 1024}),
        ({"none_of": [{}]}, {"shape.M": 4}, None),  # claims nothing: no band of it is the mistake
    ],
)  # fmt: skip
def test_any_other_is_taken_and_holds_where_both_do(when, band, call):
    kernel = declared(when=match(when), bands={Band.SPECIALIZED: match(band)})
    if call is not None:
        assert kernel.when.holds(call)
        assert kernel.band_on(call) is Band.SPECIALIZED
