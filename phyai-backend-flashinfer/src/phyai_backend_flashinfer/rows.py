"""The records of ``flashinfer.*``: what flashinfer-python executes, as its 0.7.4 sources and checkers say.

FlashInfer compiles a module for every set of dtypes and head sizes when it is first used; a kernel is therefore
capturable after one eager call. Imports neither torch nor flashinfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.predicates import match

#: The versions whose signatures these rows call; sm75 is the oldest architecture that the library builds for.
LIBRARY: Mapping[str, Any] = {
    "lib.flashinfer": ">=0.6",
    "device.type": "cuda",
    "device.vendor": "nvidia",
}

#: FA2 is mma.sync from Ampere on (Turing's has fp16 alone); FA3 is Hopper's wgmma and runs nowhere else.
FA2_HEAD_DIMS = [64, 128, 256]
FA3_HEAD_DIMS = [64, 128, 256]


def _same(names: Sequence[str]) -> dict[str, Any]:
    """All tensors have one and the same dtype, bf16 from sm80 on or fp16."""
    dtypes = (("bf16", ">=sm80"), ("fp16", ">=sm75"))
    return {"any_of": [{**{f"dtype.{n}": dtype for n in names}, "device.arch": arch} for dtype, arch in dtypes]}


def _row(
    id: str, when: Mapping[str, Any], prepare: str, *, doc: str, rank: int = 0, batch_invariant: bool = True,
    specializes_on: tuple[str, ...] = (),
) -> Kernel:  # fmt: skip
    return Kernel(
        id=id, op=id.split(".")[1], when=match({**LIBRARY, **when}), prepare=f"phyai_backend_flashinfer.{prepare}",
        capture=Capture.AFTER_WARMUP, numerics=Numerics(reproducible=True, batch_invariant=batch_invariant),
        band=Band.OPTIMIZED, rank=rank, specializes_on=specializes_on, doc=doc,
    )  # fmt: skip


def _attention(id: str, when: Mapping[str, Any], prepare: str, *, doc: str, rank: int = 0) -> Kernel:
    # lengths decide how the work is split, so a row's bits depend on the batch
    return _row(id, when, prepare, doc=doc, rank=rank, batch_invariant=False)


def _paged(id: str, when: Mapping[str, Any], prepare: str, *, doc: str, rank: int = 0) -> Kernel:
    # a captured grid fits the rows of q that it was planned for
    when, rows = {**when, **_PAGED}, ("shape.T",)
    return _row(id, when, prepare, doc=doc, rank=rank, batch_invariant=False, specializes_on=rows)


_PAGED: Mapping[str, Any] = _same(("q", "k_cache", "v_cache", "o"))
_SINGLE: Mapping[str, Any] = {
    "attrs.layout": "padded",
    "shape.B": 1,
    "shape.Sq": ">=1",
    "shape.Sk": ">=1",
    "dtype.mask": None,
    **_same(("q", "k", "v", "o")),
}
_HOPPER: Mapping[str, Any] = {"all_of": [{"device.arch": "sm90"}, {"shape.head_dim": FA3_HEAD_DIMS}]}

KERNELS: tuple[Kernel, ...] = (
    _paged("flashinfer.attention_paged.fa2", {"shape.head_dim": FA2_HEAD_DIMS}, "attention:prepare_fa2",
           rank=1, doc="paged prefill, FA2: planned once per step, lengths may change between replays"),
    _paged("flashinfer.attention_paged.fa3", _HOPPER, "attention:prepare_fa3",
           doc="paged prefill, FA3 (Hopper): planned once per step"),
    _attention("flashinfer.attention.fa2", {"shape.head_dim": FA2_HEAD_DIMS, **_SINGLE}, "attention:prepare_single_fa2",
               rank=1, doc="one sequence, FA2"),
    _attention("flashinfer.attention.fa3", {**_HOPPER, **_SINGLE}, "attention:prepare_single_fa3",
               doc="one sequence, FA3 (Hopper)"),
    _row("flashinfer.rms_norm", {"attrs.offset": [0, 1], "shape.D": "%8", **_same(("x", "weight", "y"))},
         "norms:prepare_rms_norm", doc="rmsnorm, or gemma_rmsnorm for the 1 + w form"),
    _row("flashinfer.rms_norm_add", {"attrs.offset": [0, 1], "shape.D": "%8",
                                     **_same(("x", "residual", "weight", "y"))},
         "norms:prepare_rms_norm_add", doc="fused_add_rmsnorm, or its gemma form; works on a copy of x"),
    _row("flashinfer.gated_activation", {"attrs.activation": ["silu", "gelu", "gelu_tanh"], "shape.I": "%8",
                                         **_same(("x", "y"))},
         "activations:prepare", doc="silu_and_mul, gelu_and_mul, gelu_tanh_and_mul"),
    _row("flashinfer.rope", {"attrs.mrope_sections": None, "dtype.cos_sin": "fp32", "shape.head_dim": FA2_HEAD_DIMS,
                             "shape.rotary_dim": "%16",  # eight elements at a time, of one half
                             **_same(("q", "k", "q_out", "k_out"))},
         "rope:prepare", doc="apply_rope_with_cos_sin_cache_inplace, on copies"),
)  # fmt: skip
