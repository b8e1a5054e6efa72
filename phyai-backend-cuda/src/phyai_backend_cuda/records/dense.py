"""The records of products of many rows, one tile a processor.

They are launched so that they may begin before the kernel in front has ended, as :mod:`.skinny`'s are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics, Param
from phyai.predicates import match

from phyai_backend_cuda.records.conditions import ACTIVATIONS, HOPPER, OVERLAP, TRITON, same_dtype
from phyai_backend_cuda.records.quantized import BY_ROWS, ROW_LIMIT, a8

#: SigLIP's products of three images take less time than cuBLAS's on an H200, alone and behind a launch that they may
#: overlap: qkv 11.9 and 10.8 us for 12.0, o 7.0 and 6.2 for 7.1, down 18.0 and 15.7 for 20.1, the feed-forward block
#: 34.0 and 30.1 for 35.2. Those of two images do only behind such a launch, and the prefix's do not
#: (benchmarks/notes/dense.md).
_PRODUCTS = {
    "shape.M": 768,
    "any_of": [{"shape.N": [1152, 3456], "shape.K": 1152}, {"shape.N": 1152, "shape.K": 4304}],
}
_BLOCK = {"shape.M": 768, "shape.K": 1152, "shape.I": 4304, "shape.N": 1152}
#: The tile depends on M, and a row's sums on nothing but N and K.
_INVARIANT = Numerics(reproducible=True, batch_invariant=True)


def _row(
    id: str, when: Mapping[str, Any], prepare: str, *, doc: str, where: Mapping[str, Any] | None = None,
    numerics: Numerics = _INVARIANT, params: Sequence[Param] = (),
) -> Kernel:  # fmt: skip
    return Kernel(
        id=id, op=id.split(".")[1], when=match({**HOPPER, **when}), prepare=f"phyai_backend_cuda.dense.{prepare}",
        capture=Capture.AFTER_WARMUP, numerics=numerics, params=tuple(params), doc=doc,
        band=Band.REFERENCE,  # where it was not measured: for policies and tuning to choose
        bands={} if where is None else {Band.OPTIMIZED: match(where)},
    )  # fmt: skip


KERNELS: tuple[Kernel, ...] = (
    _row("cuda.gemm.dense_16bit", {"quant.scheme": None, "shape.N": "%8", "shape.K": "%8",
                                   **same_dtype(("x", "weight", "y"), ("bias",))},
         "gemm:prepare", where=_PRODUCTS,
         doc="tiles that fill the processors, weights fetched before the kernel in front has ended"),
    _row("cuda.mlp.dense_16bit", {"parts.fc1.quant.scheme": None, "parts.fc2.quant.scheme": None,
                                  **{f"shape.{dim}": "%8" for dim in "KIN"}, "attrs.activation": ACTIVATIONS,
                                  **same_dtype(("x", "fc1", "fc2", "y"), ("fc1_bias", "fc2_bias"))},
         "gemm:prepare_mlp", where=_BLOCK,
         doc="two such launches, the activation in the first"),
    _row("cuda.gemm.dense_fp8_a8", {**TRITON, **HOPPER, "dtype.x": ["bf16", "fp16", "fp32"], "dtype.y": "bf16",
                                    "dtype.bias": [None, "bf16"], "shape.N": "%16", "shape.K": f"%16,{ROW_LIMIT}",
                                    **a8("", "fp8_e4m3", BY_ROWS)},
         "fp8:prepare", numerics=Numerics(reproducible=True, accumulation="fp22"), params=(OVERLAP,),
         doc="inputs quantized in one launch, then such a launch of FP8 operands, accumulated fast"),
)  # fmt: skip
