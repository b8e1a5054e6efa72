"""Writing a safetensors file tensor by tensor, without holding it."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import TracebackType
from typing import IO

import attrs
import torch
from phyai.errors import CheckpointError
from phyai.files.safetensors_file import DTYPE_BYTES, TensorInfo, header, torch_dtypes

_NAMES = {dtype: name for name, dtype in torch_dtypes().items()}
_BLOCK = 1 << 22


@attrs.frozen
class _Entry:
    """One tensor of the file, and where its bytes are meanwhile: in the spool (None) or in another file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path | None
    begin: int
    nbytes: int


class SafetensorsWriter:
    """Collects tensors, then writes them in an order that keeps every one aligned, as the format's library does.

    Tensors of other files are copied from there; others wait in a spool beside the file::

        with SafetensorsWriter(path) as writer:
            writer.add("weight", tensor)
            writer.copy("bias", info)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, _Entry] = {}
        self._spool_path = path.with_name(f".{path.name}.spool")
        self._spool: IO[bytes] = self._spool_path.open("wb+")

    def __enter__(self) -> SafetensorsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._spool.close()
            self._spool_path.unlink(missing_ok=True)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors so far."""
        return sum(entry.nbytes for entry in self._entries.values())

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor of the CPU."""
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        self._put(_Entry(name, _NAMES[tensor.dtype], tuple(tensor.shape), None, self._spool.tell(), data.nbytes))
        self._spool.write(data.data)

    def copy(self, name: str, info: TensorInfo) -> None:
        """Add a tensor of another file, byte by byte."""
        self._put(_Entry(name, info.dtype, info.shape, info.file, info.begin, info.nbytes))

    def _put(self, entry: _Entry) -> None:
        if entry.name in self._entries:
            raise CheckpointError(f"{entry.name} would be written twice")
        self._entries[entry.name] = entry

    def _finish(self) -> None:
        entries = sorted(self._entries.values(), key=lambda e: (-DTYPE_BYTES[e.dtype], e.name))
        for entry in entries:
            if entry.nbytes != math.prod(entry.shape) * DTYPE_BYTES[entry.dtype]:
                raise CheckpointError(f"{entry.name} has {entry.nbytes} bytes, which {entry.shape} has not")
        with self.path.open("wb") as out:
            out.write(header({entry.name: (entry.dtype, entry.shape) for entry in entries}))
            for entry in entries:
                if entry.path is None:
                    _copy(self._spool, entry, out)
                else:
                    with entry.path.open("rb") as source:
                        _copy(source, entry, out)
            out.flush()
            os.fsync(out.fileno())


def _copy(source: IO[bytes], entry: _Entry, out: IO[bytes]) -> None:
    source.seek(entry.begin)
    left = entry.nbytes
    while left:
        block = source.read(min(left, _BLOCK))
        if not block:
            raise CheckpointError(f"{entry.path or 'the spool'} ended while {entry.name} was copied")
        out.write(block)
        left -= len(block)
