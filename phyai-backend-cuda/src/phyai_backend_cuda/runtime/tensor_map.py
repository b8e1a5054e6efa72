"""Descriptions of tensors in device memory for the copy engine (``CUtensorMap``)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from phyai_backend_cuda.runtime.launch import check, driver

if TYPE_CHECKING:
    import torch

BYTES, ALIGNMENT = 128, 64
SWIZZLES, L2_256B = {32: 1, 64: 2, 128: 3}, 3  # CUtensorMapSwizzle by the bytes of a row, CUtensorMapL2promotion


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


def box_map(tensor: torch.Tensor, box: Sequence[int], row_bytes: int = 128) -> TensorMap:
    """``tensor [..., columns]`` in boxes of ``box`` by 128 (64, 32) bytes, which lie swizzled in shared memory.

    The last dimension is contiguous; what the others step over is a multiple of 16 bytes. ``box`` has a size, at most
    256, for each of these, in their order.

    Raises:
        RuntimeError: the driver refuses such a tensor.
    """
    return _encoded(tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tuple(box), row_bytes)


@functools.lru_cache(4096)  # over 10 us of the host each; they say where memory lies, not what is in it
def _encoded(
    pointer: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...],
    row_bytes: int,
) -> TensorMap:  # fmt: skip
    size, rank = dtype.itemsize, len(shape)
    raw = ctypes.create_string_buffer(BYTES + ALIGNMENT)
    place = ctypes.addressof(raw) + -ctypes.addressof(raw) % ALIGNMENT
    code = driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(place), ctypes.c_int(data_types()[dtype]), ctypes.c_uint(rank),
        ctypes.c_void_p(pointer), (ctypes.c_uint64 * rank)(*reversed(shape)),
        (ctypes.c_uint64 * (rank - 1))(*(step * size for step in reversed(strides[:-1]))),
        (ctypes.c_uint32 * rank)(row_bytes // size, *reversed(box)), (ctypes.c_uint32 * rank)(*[1] * rank),
        ctypes.c_int(0), ctypes.c_int(SWIZZLES[row_bytes]), ctypes.c_int(L2_256B), ctypes.c_int(0),
    )  # fmt: skip
    check(code, f"describing a tensor of {' x '.join(map(str, shape))}")
    return TensorMap.from_buffer_copy(ctypes.string_at(place, BYTES))
