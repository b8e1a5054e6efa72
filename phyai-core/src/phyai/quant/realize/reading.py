"""Tensors of a checkpoint, read from where their headers say they lie."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from phyai.errors import CheckpointError
from phyai.quant.checkpoint import TensorInfo

if TYPE_CHECKING:
    import torch


def read_tensor(info: TensorInfo, device: Any = None) -> torch.Tensor:
    """One tensor, as stored. E8M0 comes as uint8.

    Raises:
        CheckpointError: the file ended before the tensor did.
    """
    import torch

    dtypes = {
        "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.uint8, "I16": torch.int16, "U16": torch.uint16,
        "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32,
        "F32": torch.float32, "I64": torch.int64, "U64": torch.uint64, "F64": torch.float64,
    }  # fmt: skip
    dtype = dtypes[info.dtype]
    if math.prod(info.shape) == 0:
        return torch.empty(info.shape, dtype=dtype, device=device)
    data = bytearray(info.nbytes)
    with info.file.open("rb") as file:
        file.seek(info.begin)
        if file.readinto(data) != info.nbytes:
            raise CheckpointError(f"{info.file.name} ends inside {info.name}")
    return torch.frombuffer(data, dtype=dtype).reshape(info.shape).to(device)
