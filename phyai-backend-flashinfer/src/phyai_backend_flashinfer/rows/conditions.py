"""What the records share: the library, dtypes that go together, and the form of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.predicates import Predicate, match

#: The versions whose signatures these rows call; sm75 is the oldest architecture that the library builds for.
LIBRARY: Mapping[str, Any] = {
    "lib.flashinfer": ">=0.6",
    "device.type": "cuda",
    "device.vendor": "nvidia",
}

#: The version whose sources the newer rows were written from. What older ones lack was not looked up.
READ: Mapping[str, Any] = {"lib.flashinfer": ">=0.7.4"}

#: FA2 is mma.sync from Ampere on (Turing's has fp16 alone); FA3 is Hopper's wgmma and runs nowhere else.
HEAD_DIMS = [64, 128, 256]
HOPPER: Mapping[str, Any] = {"device.arch": "sm90"}


def same(names: Sequence[str]) -> dict[str, Any]:
    """All tensors have one and the same dtype, bf16 from sm80 on or fp16."""
    dtypes = (("bf16", ">=sm80"), ("fp16", ">=sm75"))
    return {"any_of": [{**{f"dtype.{n}": dtype for n in names}, "device.arch": arch} for dtype, arch in dtypes]}


def row(
    id: str, when: Mapping[str, Any], prepare: str, *, doc: str, rank: int = 0, batch_invariant: bool = True,
    band: Band = Band.OPTIMIZED, capture: Capture = Capture.AFTER_WARMUP, specializes_on: tuple[str, ...] = (),
    accumulation: str = "fp32", bands: Mapping[Band, Predicate] = {},
) -> Kernel:  # fmt: skip
    """A record of this backend. FlashInfer compiles a module for every set of dtypes and head sizes when it is first
    used, so a kernel is capturable after one eager call."""
    return Kernel(
        id=id, op=id.split(".")[1], when=match({**LIBRARY, **when}), prepare=f"phyai_backend_flashinfer.{prepare}",
        capture=capture, band=band, bands=bands, rank=rank, specializes_on=specializes_on, doc=doc,
        numerics=Numerics(reproducible=True, batch_invariant=batch_invariant, accumulation=accumulation),
    )  # fmt: skip
