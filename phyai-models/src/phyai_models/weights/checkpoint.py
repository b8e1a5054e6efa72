"""A checkpoint directory: one ``model.safetensors``, or shards with their index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import attrs
import torch
from phyai.errors import CheckpointError

from phyai_models.weights.safetensors_file import TensorInfo, read_header, read_into

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

#: Configuration files are small; anything larger is not one.
MAX_JSON_BYTES = 16_000_000


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``.

    Raises:
        CheckpointError: the file is missing, too large, not JSON, or not an object.
    """
    try:
        size = path.stat().st_size
        text = path.read_bytes() if size <= MAX_JSON_BYTES else b""
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if size > MAX_JSON_BYTES:
        raise CheckpointError(f"{path} is larger than {MAX_JSON_BYTES} bytes; a configuration is not")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} should hold a JSON object, and holds a {type(value).__name__}")
    return value


@attrs.frozen
class Checkpoint:
    """The tensors of a checkpoint, by name; their data stays on disk until it is read.

    ``directory`` is where it lies, ``tensors`` what its headers say.
    """

    directory: Path
    tensors: Mapping[str, TensorInfo]

    @classmethod
    def open(cls, directory: str | Path) -> Checkpoint:
        """Read the headers of the checkpoint in ``directory``.

        Raises:
            CheckpointError: no weights there, a shard missing or outside the directory, a damaged file, or an
                index that disagrees with its shards.
        """
        directory = Path(directory)
        if not directory.is_dir():
            raise CheckpointError(f"{directory} is not a directory; a checkpoint is a directory with {SINGLE} in it")
        single, index = directory / SINGLE, directory / INDEX
        if index.is_file():
            return cls(directory, _open_shards(directory, index))
        if single.is_file():
            return cls(directory, read_header(single))
        raise CheckpointError(f"{directory} holds neither {SINGLE} nor {INDEX}; put the checkpoint's weights there")

    def read(self, name: str, out: torch.Tensor | None = None) -> torch.Tensor:
        """The tensor called ``name`` on the CPU, in ``out`` when given (same dtype and shape, contiguous)."""
        info = self.tensors[name]
        if out is None:
            out = torch.empty(info.shape, dtype=info.dtype)
        read_into(info, out)
        return out

    def read_rows(self, name: str, begin: int, end: int) -> torch.Tensor:
        """Rows ``begin`` to ``end - 1`` of the matrix called ``name``, on the CPU."""
        info = self.tensors[name]
        width = (info.end - info.begin) // max(info.shape[0], 1)
        rows = attrs.evolve(info, begin=info.begin + begin * width, end=info.begin + end * width)
        out = torch.empty((end - begin, *info.shape[1:]), dtype=info.dtype)
        read_into(rows, out)
        return out


def inside(directory: Path, name: object, named_by: Path) -> Path:
    """``directory / name``, where ``name`` was read from the untrusted file ``named_by``.

    Raises:
        CheckpointError: ``name`` is not a relative path that stays inside ``directory``.
    """
    text = str(name)
    paths = (PurePosixPath(text), PureWindowsPath(text))
    if not isinstance(name, str) or not text or any(p.is_absolute() or p.drive or ".." in p.parts for p in paths):
        raise CheckpointError(f"{named_by} names the file {name!r}, which is outside {directory}; that is refused")
    return directory / text


def _open_shards(directory: Path, index: Path) -> dict[str, TensorInfo]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map (tensor name to file name)")
    paths = {name: inside(directory, name, index) for name in dict.fromkeys(weight_map.values())}
    headers = {name: read_header(path) for name, path in paths.items()}
    problems = [
        f"{tensor} should be in {file} and is not" for tensor, file in weight_map.items() if tensor not in headers[file]
    ]
    problems += [
        f"{tensor} is in {file} and the index "
        + (f"puts it in {weight_map[tensor]}" if tensor in weight_map else "does not know it")
        for file, header in headers.items()
        for tensor in header
        if weight_map.get(tensor) != file
    ]
    if problems:
        raise CheckpointError(f"{index} disagrees with its shards:\n  " + "\n  ".join(problems))
    return {tensor: headers[file][tensor] for tensor, file in weight_map.items()}
