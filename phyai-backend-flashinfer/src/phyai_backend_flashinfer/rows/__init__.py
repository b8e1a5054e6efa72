"""The records of ``flashinfer.*``: what flashinfer-python executes, as its 0.7.4 sources and checkers say.

Imports neither torch nor flashinfer.
"""

from __future__ import annotations

from phyai.kernel import Kernel

from phyai_backend_flashinfer.rows import attention, elementwise, gemm

KERNELS: tuple[Kernel, ...] = (*attention.KERNELS, *elementwise.KERNELS, *gemm.KERNELS)
