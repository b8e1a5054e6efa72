"""Descriptions of tensors in device memory for the copy engine (``CUtensorMap``)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
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
    return box_map(matrix, (box_rows,))


def box_map(tensor: torch.Tensor, box: Sequence[int]) -> TensorMap:
    """``tensor [..., columns]`` in boxes of ``box`` by 128 bytes, which lie swizzled in shared memory.

    The last dimension is contiguous; what the others step over is a multiple of 16 bytes. ``box`` has a size, at most
    256, for each of these, in their order.

    Raises:
        RuntimeError: the driver refuses such a tensor.
    """
    size, rank = tensor.element_size(), tensor.dim()
    raw = ctypes.create_string_buffer(BYTES + ALIGNMENT)
    place = ctypes.addressof(raw) + -ctypes.addressof(raw) % ALIGNMENT
    code = driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(place), ctypes.c_int(data_types()[tensor.dtype]), ctypes.c_uint(rank),
        ctypes.c_void_p(tensor.data_ptr()), (ctypes.c_uint64 * rank)(*reversed(tensor.shape)),
        (ctypes.c_uint64 * (rank - 1))(*(step * size for step in reversed(tensor.stride()[:-1]))),
        (ctypes.c_uint32 * rank)(128 // size, *reversed(box)), (ctypes.c_uint32 * rank)(*[1] * rank), ctypes.c_int(0),
        ctypes.c_int(SWIZZLE_128B), ctypes.c_int(L2_256B), ctypes.c_int(0),
    )  # fmt: skip
    check(code, f"describing a tensor of {' x '.join(map(str, tensor.shape))}")
    return TensorMap.from_buffer_copy(ctypes.string_at(place, BYTES))
