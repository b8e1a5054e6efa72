"""Attention, over given keys and over a paged cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.kernel import Band, Capture, Kernel
from phyai.predicates import Predicate, match

from phyai_backend_flashinfer.rows.conditions import HEAD_DIMS, HOPPER, READ, row, same

#: The numbers of queries up to which FA2 splits keys and is the better one, and from which FA3 is: on an H200 FA2 takes
#: 11.6 us for 50 queries of 1018 keys (benchmarks/results/rows_attention.json); for 968 of 968 FA3 takes 39
#: (pi05_3cameras_bucket.json), and the whole step 1.7 % less with it than with FA2 (tune_pi05.json).
FEW, MANY = "<=512", ">512"


def _better(dim: str, queries: str) -> dict[Band, Predicate]:
    return {Band.OPTIMIZED: match({f"shape.{dim}": queries})}


def _attention(id: str, when: Mapping[str, Any], prepare: str, *, doc: str, better: str, rank: int = 0) -> Kernel:
    # lengths decide how the work is split, so a row's bits depend on the batch
    return row(
        id, when, f"attention:{prepare}", doc=doc, rank=rank, batch_invariant=False, band=Band.GENERAL,
        bands=_better("Sq", better),
    )  # fmt: skip


def _last(
    id: str, when: Mapping[str, Any], prepare: str, *, doc: str, rank: int = 0, capture: Capture = Capture.AFTER_WARMUP,
    specializes_on: tuple[str, ...] = (),
) -> Kernel:  # fmt: skip
    """A row that comes after torch's, except where torch has none."""
    return row(
        id, when, f"attention:{prepare}", doc=doc, rank=rank, batch_invariant=False, band=Band.REFERENCE,
        bands={Band.GENERAL: match({"attrs.soft_cap": "*"})}, capture=capture, specializes_on=specializes_on,
    )  # fmt: skip


def _paged(id: str, when: Mapping[str, Any], prepare: str, *, doc: str, better: str, rank: int = 0) -> Kernel:
    # a captured grid fits the rows of q that it was planned for
    when, rows = {**when, **_PAGED}, ("shape.T",)
    return row(
        id, when, f"attention_paged:{prepare}", doc=doc, rank=rank, batch_invariant=False, specializes_on=rows,
        band=Band.GENERAL, bands=_better("T", better),
    )  # fmt: skip


#: A captured plan is that of these lengths.
_LENGTHS = ("shape.B", "shape.Sq", "shape.Sk")
_PAGED: Mapping[str, Any] = same(("q", "k_cache", "v_cache", "o"))
_SINGLE: Mapping[str, Any] = {
    "attrs.layout": "padded",
    "shape.B": 1,
    "shape.Sq": ">=1",
    "shape.Sk": ">=1",
    "dtype.mask": None,
    **same(("q", "k", "v", "o")),
}
_MASKED: Mapping[str, Any] = {**_SINGLE, **READ, "dtype.mask": "bool"}
_PADDED: Mapping[str, Any] = {**_SINGLE, **READ, "shape.B": ">=1"}
_RAGGED: Mapping[str, Any] = {
    "attrs.layout": "ragged", "shape.Sq": ">=1", "shape.Sk": ">=1", "dtype.mask": None,
    "dtype.cu_seqlens_q": "int32", "dtype.cu_seqlens_k": "int32", **READ, **same(("q", "k", "v", "o")),
}  # fmt: skip
_FA2: Mapping[str, Any] = {"shape.head_dim": HEAD_DIMS}
_FA3: Mapping[str, Any] = {"all_of": [{"shape.head_dim": HEAD_DIMS}, HOPPER]}

KERNELS: tuple[Kernel, ...] = (
    _paged("flashinfer.attention_paged.fa2", _FA2, "prepare_fa2",
           better=FEW, rank=1, doc="paged prefill, FA2: planned once per step, lengths may change between replays"),
    _paged("flashinfer.attention_paged.fa3", _FA3, "prepare_fa3",
           better=MANY, doc="paged prefill, FA3 (Hopper): planned once per step"),
    _attention("flashinfer.attention.fa2", {**_FA2, **_SINGLE}, "prepare_single_fa2",
               better=FEW, rank=1, doc="one sequence, FA2"),
    _attention("flashinfer.attention.fa3", {**_FA3, **_SINGLE}, "prepare_single_fa3",
               better=MANY, doc="one sequence, FA3 (Hopper)"),
    _last("flashinfer.attention.masked_fa2", {**_FA2, **_MASKED}, "prepare_single_fa2",
          doc="one sequence with a mask, FA2; slower than torch's SDPA with one"),
    _last("flashinfer.attention.batch_fa2", {**_FA2, **_PADDED}, "prepare_padded_fa2", rank=-1, specializes_on=_LENGTHS,
          doc="sequences of one length, FA2: planned once for their number and length; not measured"),
    _last("flashinfer.attention.batch_fa3", {**_FA3, **_PADDED}, "prepare_padded_fa3", rank=-2, specializes_on=_LENGTHS,
          doc="sequences of one length, FA3 (Hopper): planned once for their number and length; not measured"),
    _last("flashinfer.attention.ragged_fa2", {**_FA2, **_RAGGED}, "prepare_ragged_fa2", rank=-1, capture=Capture.NEVER,
          doc="ragged sequences, FA2: every call is planned, which waits for the device"),
    _last("flashinfer.attention.ragged_fa3", {**_FA3, **_RAGGED}, "prepare_ragged_fa3", rank=-2, capture=Capture.NEVER,
          doc="ragged sequences, FA3 (Hopper): every call is planned, which waits for the device"),
)  # fmt: skip
