"""The records of norms between two products of few rows.

Launched so that they may begin before the kernel in front has ended, as :mod:`.skinny`'s are.
"""

from __future__ import annotations

from collections.abc import Sequence

from phyai.kernel import Band, Capture, Kernel, Numerics, Param
from phyai.predicates import match

from phyai_backend_cuda.records.conditions import HOPPER, same_dtype

#: Of an expert's layer early takes 0.5 us less with 16-bit weights, and 3 to 4 us more with quantized ones, whose
#: launches pile up behind attention (benchmarks/notes/skinny.md).
_RELEASE = Param(
    "release", "when the launch behind may begin: at once, or once that in front has ended", ("early", "late"), "early"
)


def _norm(op: str, tensors: Sequence[str], optional: Sequence[str] = ()) -> Kernel:
    return Kernel(
        id=f"cuda.{op}.overlap", op=op, when=match({**HOPPER, "shape.D": "%8,<=8192", **same_dtype(tensors, optional)}),
        prepare=f"phyai_backend_cuda.norms.overlap:prepare_{op}", capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True, batch_invariant=True), band=Band.OPTIMIZED, rank=-1, params=(_RELEASE,),
        doc="one pass, in a launch that overlaps its neighbours",
    )  # fmt: skip


KERNELS: tuple[Kernel, ...] = (
    _norm("rms_norm", ("x", "y"), ("weight",)),
    _norm("rms_norm_add", ("x", "residual", "weight", "y")),
    _norm("ada_rms_norm", ("x", "modulation", "y", "gate")),
)
