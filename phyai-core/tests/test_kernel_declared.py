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
