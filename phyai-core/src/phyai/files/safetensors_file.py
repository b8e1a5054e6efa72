"""One safetensors file: what its header says, and its tensors by byte ranges.

The format is eight bytes of header length, a JSON header, and the tensors' bytes (documented at
https://huggingface.co/docs/safetensors). It is read by plain file reads and not through a memory map, for two reasons:
a tensor's bytes go straight into the parameter that will hold them, so that the peak is one copy of the model; and
every inconsistency of the header is reported before any of it is believed.
"""

from __future__ import annotations

import functools
import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from phyai.errors import CheckpointError

if TYPE_CHECKING:
    import torch

#: Bytes of one header: the format's own limit.
MAX_HEADER = 100_000_000

#: Bytes per element.
DTYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


@functools.cache
def torch_dtypes() -> Mapping[str, torch.dtype]:
    """torch's dtypes by the format's names for them."""
    import torch

    return {
        "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu, "I16": torch.int16, "U16": torch.uint16,
        "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32,
        "I64": torch.int64, "U64": torch.uint64, "F64": torch.float64,
    }  # fmt: skip


@attrs.frozen
class TensorInfo:
    """Where one tensor lies: its name, dtype (as the format spells it), shape, file, and bytes of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch_dtypes()[self.dtype]


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The tensors and the metadata that a file's header describes; no data is read.

    Raises:
        CheckpointError: the file is missing or truncated, or the header is too large or does not describe the file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise CheckpointError(
                    f"{path} is truncated or not a safetensors file: it has {size} bytes, and its header alone should "
                    f"take {8 + length}. Download or copy it again"
                )
            if length > MAX_HEADER:
                raise CheckpointError(f"{path}: a header of {length} bytes exceeds the format's {MAX_HEADER}")
            body = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        header = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: its header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ must map names to strings")
    tensors = {name: _tensor_info(path, name, entry, 8 + length) for name, entry in header.items()}
    _check_layout(path, tensors, 8 + length, size)
    return tensors, metadata


def _tensor_info(path: Path, name: str, entry: Any, data: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        well_formed = all(type(n) is int and 0 <= n < 1 << 63 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        well_formed = False
    if not well_formed:
        raise CheckpointError(
            f"{path}: the header's entry for {name!r} is malformed: dtype, shape and data_offsets are whole numbers"
        )
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise CheckpointError(f"{path}: {name!r} has dtype {dtype!r}; known are {', '.join(DTYPE_BYTES)}")
    nbytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != nbytes:
        raise CheckpointError(
            f"{path}: {name!r} should take {nbytes} bytes as {dtype} of shape {list(shape)}, "
            f"and its offsets span {end - begin}"
        )
    return TensorInfo(name, dtype, shape, path, data + begin, data + end)


def _check_layout(path: Path, tensors: Mapping[str, TensorInfo], end: int, size: int) -> None:
    """Check that every byte behind the header belongs to one tensor."""
    for info in sorted(tensors.values(), key=lambda i: (i.begin, i.end)):
        if info.begin != end:
            raise CheckpointError(f"{path}: the bytes of {info.name!r} overlap another tensor's or leave a hole")
        end = info.end
    if end != size:
        what = "is truncated" if size < end else "has bytes that belong to no tensor"
        raise CheckpointError(f"{path} {what}: its header describes {end} bytes, and the file has {size}")


def read_bytes(info: TensorInfo, into: memoryview) -> None:
    """Read a tensor's bytes into a writable buffer of just that many.

    Raises:
        CheckpointError: the file has changed since its header was read.
    """
    with info.file.open("rb", buffering=0) as file:
        file.seek(info.begin, os.SEEK_SET)
        while len(into):
            count = file.readinto(into)
            if not count:
                raise CheckpointError(f"{info.file} ended while {info.name!r} was read: it changed since it was opened")
            into = into[count:]


def read_tensor(info: TensorInfo, out: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor on the CPU, as it is stored; in ``out`` when given (same dtype and shape, contiguous).

    Raises:
        CheckpointError: the file has changed since its header was read.
    """
    import torch

    if out is None:
        out = torch.empty(info.shape, dtype=info.torch_dtype)
    if info.nbytes:
        read_bytes(info, memoryview(out.reshape(-1).view(torch.uint8).numpy().data))
    return out


def read_all(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a small file, on the CPU.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    return {name: read_tensor(info) for name, info in read_header(path)[0].items()}


def header(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """The header of a file with these tensors (dtype and shape by name), whose data follows it in this order.

    >>> header({"w": ("F32", (2, 3))})[8:]
    b'{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * DTYPE_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    body = json.dumps(entries, separators=(",", ":")).encode()
    body += b" " * (-len(body) % 8)  # data is aligned to eight bytes
    return struct.pack("<Q", len(body)) + body
