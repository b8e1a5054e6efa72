"""The records of products of many rows with 16-bit weights, one tile a processor.

They are launched so that they may begin before the kernel in front has ended, as :mod:`.skinny`'s are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.predicates import match

from phyai_backend_cuda.records.conditions import ACTIVATIONS, HOPPER, same_dtype


def _row(id: str, when: Mapping[str, Any], prepare: str, *, doc: str) -> Kernel:
    return Kernel(
        id=id, op=id.split(".")[1], when=match({**HOPPER, **when}), prepare=f"phyai_backend_cuda.dense.{prepare}",
        capture=Capture.AFTER_WARMUP, numerics=Numerics(reproducible=True, batch_invariant=True),
        band=Band.REFERENCE, doc=doc,
    )  # fmt: skip


KERNELS: tuple[Kernel, ...] = (
    _row("cuda.gemm.dense_16bit", {"quant.scheme": None, "shape.N": "%8", "shape.K": "%8",
                                   **same_dtype(("x", "weight", "y"), ("bias",))},
         "gemm:prepare", doc="tiles that fill the processors, weights fetched before the kernel in front has ended"),
    _row("cuda.mlp.dense_16bit", {"parts.fc1.quant.scheme": None, "parts.fc2.quant.scheme": None,
                                  **{f"shape.{dim}": "%8" for dim in "KIN"}, "attrs.activation": ACTIVATIONS,
                                  **same_dtype(("x", "fc1", "fc2", "y"), ("fc1_bias", "fc2_bias"))},
         "gemm:prepare_mlp", doc="two such launches, the activation in the first"),
    _row("cuda.qkv_rope_kv_write.dense_16bit",
         {"quant.scheme": None, "dtype.cos_sin": "fp32", "shape.K": "%8", "shape.head_dim": "%16",
          "shape.rotary_dim": "%16", **same_dtype(("x", "weight", "k_cache", "v_cache", "q"), ("bias",))},
         "rope:prepare", doc="one launch: rotation and cache writes in the product's epilogue"),
)  # fmt: skip
