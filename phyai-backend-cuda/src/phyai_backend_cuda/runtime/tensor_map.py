"""Descriptions of matrices in device memory for the copy engine (``CUtensorMap``)."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from phyai_backend_cuda.runtime.launch import check, driver

if TYPE_CHECKING:
    import torch

BYTES, ALIGNMENT = 128, 64
SWIZZLE_128B, L2_256B = 3, 3  # CUtensorMapSwizzle, CUtensorMapL2promotion


class TensorMap(ctypes.Structure):
    """A ``CUtensorMap`` as a kernel's argument."""

    _fields_ = (("bytes", ctypes.c_ubyte * BYTES),)


def data_types() -> dict[torch.dtype, int]:
    """``CUtensorMapDataType`` of what is moved and not computed with."""
    import torch

    return {torch.float8_e4m3fn: 0, torch.uint8: 0, torch.float16: 6, torch.bfloat16: 9}


def matrix_map(matrix: torch.Tensor, box_rows: int) -> TensorMap:
    """``matrix [rows, columns]`` in boxes of ``box_rows`` rows of 128 bytes, which lie swizzled in shared memory.

    Rows are contiguous, begin at multiples of 16 bytes, and may lie apart.

    Raises:
        RuntimeError: the driver refuses such a matrix.
    """
    rows, columns = matrix.shape
    size = matrix.element_size()
    raw = ctypes.create_string_buffer(BYTES + ALIGNMENT)
    place = ctypes.addressof(raw) + -ctypes.addressof(raw) % ALIGNMENT
    code = driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(place), ctypes.c_int(data_types()[matrix.dtype]), ctypes.c_uint(2),
        ctypes.c_void_p(matrix.data_ptr()), (ctypes.c_uint64 * 2)(columns, rows),
        (ctypes.c_uint64 * 1)(matrix.stride(0) * size), (ctypes.c_uint32 * 2)(128 // size, box_rows),
        (ctypes.c_uint32 * 2)(1, 1), ctypes.c_int(0), ctypes.c_int(SWIZZLE_128B), ctypes.c_int(L2_256B),
        ctypes.c_int(0),
    )  # fmt: skip
    check(code, f"describing a matrix of {rows} x {columns}")
    return TensorMap.from_buffer_copy(ctypes.string_at(place, BYTES))
