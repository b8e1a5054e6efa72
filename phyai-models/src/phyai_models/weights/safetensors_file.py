"""One safetensors file, read by byte ranges.

The format is eight bytes of header length, a JSON header, and the tensors' bytes (documented at
https://huggingface.co/docs/safetensors). It is read here by plain file reads and not through a memory
map, for two reasons: a tensor's bytes go straight into the parameter that will hold them, so that the
peak is one copy of the model; and every inconsistency of the header is reported before any of it is
believed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from phyai.errors import CheckpointError

#: The format's own limit on the header.
MAX_HEADER_BYTES = 100_000_000

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "BOOL": torch.bool,
}  # fmt: skip


@attrs.frozen
class TensorInfo:
    """Where one tensor lies: ``begin`` and ``end`` are byte offsets in the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    path: Path
    begin: int
    end: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of the file at ``path``, by name, without reading their data.

    Raises:
        CheckpointError: the file is missing, truncated, or its header contradicts itself.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise CheckpointError(
                    f"{path} is truncated or not a safetensors file: it has {size} bytes, "
                    f"and its header alone should take {length + 8}. Download or copy it again"
                )
            if length > MAX_HEADER_BYTES:
                raise CheckpointError(f"{path}: a header of {length} bytes exceeds the format's {MAX_HEADER_BYTES}")
            body = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        header = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its header is not valid JSON ({error})") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: its header is not a JSON object")
    infos = [_tensor_info(path, name, entry, 8 + length) for name, entry in header.items() if name != "__metadata__"]
    _check_layout(path, infos, 8 + length, size)
    return {info.name: info for info in infos}


def _tensor_info(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        numbers_ok = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        numbers_ok = False
    if not numbers_ok:
        raise CheckpointError(f"{path}: the header's entry for {name!r} is malformed")
    if dtype not in DTYPES:
        raise CheckpointError(f"{path}: {name!r} has dtype {dtype!r}; known are {', '.join(DTYPES)}")
    if end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
        raise CheckpointError(
            f"{path}: {name!r} should take {math.prod(shape) * DTYPES[dtype].itemsize} bytes "
            f"as {dtype} of shape {list(shape)}, and its offsets span {end - begin}"
        )
    return TensorInfo(name, DTYPES[dtype], shape, path, data_start + begin, data_start + end)


def _check_layout(path: Path, infos: list[TensorInfo], start: int, size: int) -> None:
    for info in sorted(infos, key=lambda i: (i.begin, i.end)):
        if info.begin != start:
            raise CheckpointError(f"{path}: the bytes of {info.name!r} overlap another tensor's or leave a hole")
        start = info.end
    if start != size:
        what = "is truncated" if size < start else "has bytes that belong to no tensor"
        raise CheckpointError(f"{path} {what}: its header describes {start} bytes, and the file has {size}")


def read_into(info: TensorInfo, out: torch.Tensor) -> None:
    """Read a tensor's bytes into ``out``: a contiguous CPU tensor of the same dtype and shape.

    Raises:
        CheckpointError: the file has changed since its header was read.
    """
    if info.begin == info.end:
        return
    target = memoryview(out.reshape(-1).view(torch.uint8).numpy().data)
    with info.path.open("rb", buffering=0) as file:
        file.seek(info.begin, os.SEEK_SET)
        while len(target):
            count = file.readinto(target)
            if not count:
                raise CheckpointError(f"{info.path} ended while {info.name!r} was read: it changed since it was opened")
            target = target[count:]


def read_all(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a small file, on the CPU.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    values = {}
    for name, info in read_header(path).items():
        values[name] = torch.empty(info.shape, dtype=info.dtype)
        read_into(info, values[name])
    return values
