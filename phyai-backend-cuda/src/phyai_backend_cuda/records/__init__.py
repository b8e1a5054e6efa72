"""What PhyAI's own kernels can execute, and where each is prepared. Imports neither torch, triton nor cupy."""

from __future__ import annotations

from phyai.kernel import Kernel
from phyai.quant.formats import QuantFormat

from phyai_backend_cuda.records import (
    attention,
    dense,
    encoder,
    expert,
    norms,
    quantized,
    skinny,
    skinny_fused,
    triton_rows,
)

KERNELS: tuple[Kernel, ...] = (
    *expert.KERNELS,
    *encoder.KERNELS,
    *triton_rows.KERNELS,
    *attention.KERNELS,
    *skinny.KERNELS,
    *skinny_fused.KERNELS,
    *dense.KERNELS,
    *norms.KERNELS,
    *quantized.KERNELS,
)

FORMATS: tuple[QuantFormat, ...] = skinny.FORMATS
