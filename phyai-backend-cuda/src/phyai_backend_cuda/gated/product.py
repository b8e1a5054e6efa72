"""Host side of ``csrc/gated.cu``: both halves of a gated feed-forward block's first product, and their activation."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from phyai_backend_cuda.runtime.launch import current_stream, load
from phyai_backend_cuda.runtime.tensor_map import matrix_map

if TYPE_CHECKING:
    import torch

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
#: Columns of h and rows of x of a block, and threads.
COLUMNS, ROWS, THREADS = 128, 128, 384
SHARED_BYTES = 1024 + 4 * 3 * 128 * 128 + 4 * 64 * 128 + 64


class GatedProduct:
    """``h = act(x · gateᵀ) * (x · upᵀ)`` for ``weight [2·I, K]`` (gate's rows, then up's), as one launch.

    ``weight`` is float8_e4m3fn with ``scale`` fp32 ``[2·I]``, and x is too, with a scale per row. I is a multiple of
    128, rows of x and of the weight are contiguous and of a multiple of 16 bytes. h is bf16; or, with a static
    ``h_scale`` (fp32 ``[1]``), its FP8 codes.
    """

    def __init__(
        self, weight: torch.Tensor, scale: torch.Tensor, activation: str, processors: int,
        h_scale: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        self.weight, self.scale, self.h_scale = weight, scale, h_scale
        self.width, self.inputs = weight.shape[0] // 2, weight.shape[1]
        self._blocks = processors // 2 * 2
        self._weight = matrix_map(weight, COLUMNS)
        defines = {"ACTIVATION": ACTIVATIONS.index(activation)}
        if h_scale is not None:
            defines["CODES"] = 1
        self._kernel = load("gated.cu", "gated", defines, arch="sm_90a", shared_bytes=SHARED_BYTES, cluster=2)

    def __call__(self, x: torch.Tensor, scales: torch.Tensor, h: torch.Tensor) -> None:
        """Write ``h [M, I]`` of ``x [M, K]`` whose rows have ``scales [M]`` (fp32)."""
        pointers = (None if t is None else t.data_ptr() for t in (scales, self.scale, self.h_scale))
        arguments = (
            matrix_map(x, ROWS), self._weight, matrix_map(h, 64), *(ctypes.c_void_p(p) for p in pointers),
            *(ctypes.c_int(n) for n in (len(x), self.width, self.inputs)),
        )  # fmt: skip
        self._kernel.launch((self._blocks,), THREADS, arguments, current_stream())
