"""A small catalog for the policy tests: some of the reference distribution's kernels, and no other backend."""

from __future__ import annotations

from functools import cache

from phyai.catalog import Catalog
from phyai.kernel import Capture, Kernel, Numerics, Param
from phyai.plugins import Plugin, PluginStatus
from phyai.predicates import TRUE

IDS = (
    "reference.gemm", "reference.rms_norm", "reference.layer_norm", "reference.rope", "reference.activation",
    "torch.gemm.bf16", "torch.gemm.fp8_scaled", "torch.layer_norm", "torch.rms_norm", "torch.activation.gelu",
    "torch.attention.math", "torch.attention.cudnn",
)  # fmt: skip
PARAMS = {"torch.gemm.bf16": (Param("algorithm", "which", values=("a", "b")), Param("split_k", "parts of K"))}


@cache
def small_catalog() -> Catalog:
    kernels = tuple(
        Kernel(
            id=id,
            op=id.split(".")[1],
            when=TRUE,
            prepare=print,
            capture=Capture.SAFE,
            numerics=Numerics(reproducible=True),
            params=PARAMS.get(id, ()),
        )
        for id in IDS
    )
    return Catalog.build([Plugin(PluginStatus("reference", distribution="phyai-backend-reference"), kernels=kernels)])
