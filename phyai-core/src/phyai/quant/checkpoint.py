"""Reading what a checkpoint folder says about itself: JSON files and safetensors headers, never weights.

Everything here is untrusted: files are bounded in size, names stay inside their folder, and a header
that does not describe its file exactly is refused. Nothing imports torch.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import attrs

from phyai.errors import CheckpointError
from phyai.files.json_file import read_json
from phyai.files.safetensors_file import TensorInfo, read_bytes, read_header

_MAX_SMALL = 64  # elements that may be read without loading weights

#: How single elements are unpacked; dtypes that are not here have no scalar form that is read.
_CODES = {
    "BOOL": "?", "U8": "B", "I8": "b", "F8_E8M0": "B", "I16": "h", "U16": "H", "F16": "e", "I32": "i", "U32": "I",
    "F32": "f", "I64": "q", "U64": "Q", "F64": "d",
}  # fmt: skip


@attrs.frozen
class Checkpoint:
    """A checkpoint folder, or a bare configuration file (then there are no tensors).

    ``configs`` maps the names of the JSON files that were there to their contents, ``tensors`` the tensor
    names to where they lie, ``metadata`` is the safetensors metadata of all files together.
    """

    path: Path
    configs: Mapping[str, Mapping[str, Any]]
    tensors: Mapping[str, TensorInfo] = attrs.field(factory=dict)
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    is_file: bool = False

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Read the headers of a checkpoint folder, or one configuration file.

        Raises:
            CheckpointError: there is nothing there, or it is malformed.
        """
        path = Path(path)
        if path.is_file():
            if path.suffix == ".safetensors":
                tensors, metadata = read_header(path)
                return cls(path, _read_configs(path.parent), tensors, metadata)
            return cls(path, {path.name: read_json(path)}, is_file=True)
        if not path.is_dir():
            raise CheckpointError(f"{path} is neither a folder nor a file")
        tensors, metadata = stored_tensors(path)
        configs = _read_configs(path)
        if not tensors and not configs:
            raise CheckpointError(f"{path} is no checkpoint: it has neither safetensors files nor {CONFIG_FILES[0]}")
        return cls(path, configs, tensors, metadata)

    def read_small(self, name: str) -> list[float]:
        """The values of a tensor of at most 64 elements (a shape, a scalar), without loading anything else.

        Raises:
            CheckpointError: the tensor is larger, or of a dtype that has no scalar form here.
        """
        info = self.tensors[name]
        code = _CODES.get(info.dtype)
        count = math.prod(info.shape)
        if count > _MAX_SMALL or code is None:
            raise CheckpointError(f"{name}: {info.dtype} {list(info.shape)} is not a small integer or float tensor")
        data = bytearray(info.nbytes)
        read_bytes(info, memoryview(data))
        return list(struct.unpack(f"<{count}{code}", data))


#: Files that may hold a quantization configuration, beside the model's own config.json.
CONFIG_FILES: tuple[str, ...] = (
    "config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json", "params.json",
    "quantization_config.json",
)  # fmt: skip


def _read_configs(folder: Path) -> dict[str, Mapping[str, Any]]:
    return {name: read_json(folder / name) for name in CONFIG_FILES if (folder / name).is_file()}


def stored_tensors(folder: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The tensors of a folder's safetensors files, by name, and the metadata of all files together.

    Raises:
        CheckpointError: a file is malformed, a tensor is stored twice, or the index disagrees with the files.
    """
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, str] = {}
    for file in weight_files(folder):
        found, extra = read_header(file)
        for name in found.keys() & tensors.keys():
            raise CheckpointError(f"{name} is in both {tensors[name].file.name} and {file.name}")
        tensors |= found
        metadata |= extra
    _check_index(folder, tensors)
    return tensors, metadata


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: those that the index names, else ``model.safetensors``, else all.

    Raises:
        CheckpointError: the index names a file that is missing or outside the folder.
    """
    index, weight_map = _read_index(folder)
    if index is None:
        whole = folder / "model.safetensors"
        return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    files = []
    for name in sorted(set(weight_map.values())):
        file = folder / name
        if {PurePosixPath(name).name, PureWindowsPath(name).name} != {name} or name in ("", ".."):
            raise CheckpointError(f"{index.name} names {name!r}, which is not a file of this folder")
        if not file.is_file():
            raise CheckpointError(f"{index.name} names {name!r}, which is missing")
        files.append(file)
    return files


def _read_index(folder: Path) -> tuple[Path | None, Mapping[str, str]]:
    """The index of a folder and what it maps; None and nothing where there is none."""
    indices = sorted(folder.glob("*.safetensors.index.json"))
    if len(indices) > 1:
        raise CheckpointError(f"{folder} has several indices: {', '.join(i.name for i in indices)}")
    if not indices:
        return None, {}
    weight_map = read_json(indices[0]).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(f, str) for f in weight_map.values()):
        raise CheckpointError(f"{indices[0].name}: weight_map must map tensor names to file names")
    return indices[0], weight_map


def _check_index(folder: Path, tensors: Mapping[str, TensorInfo]) -> None:
    """Check that the index and the files that it names hold the same tensors."""
    index, weight_map = _read_index(folder)
    if index is None:
        return
    problems = [f"{name} is not in {weight_map[name]}" for name in weight_map.keys() - tensors.keys()]
    problems += [
        f"{name} in {info.file.name} is not indexed" for name, info in tensors.items() if name not in weight_map
    ]
    problems += [
        f"{name} is in {tensors[name].file.name}, not in {file}"
        for name, file in weight_map.items() if name in tensors and tensors[name].file.name != file
    ]  # fmt: skip
    if problems:
        raise CheckpointError(f"{index.name} disagrees with its files:\n  " + "\n  ".join(sorted(problems)))
