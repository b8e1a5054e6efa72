"""Reading what a checkpoint folder says about itself: JSON files and safetensors headers, never weights.

Everything here is untrusted: files are bounded in size, names stay inside their folder, and a header
that does not describe its file exactly is refused. Nothing imports torch.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from phyai.errors import CheckpointError

MAX_JSON = 64 << 20  # bytes of one JSON file; the index of the largest public model has about 10 MB
MAX_HEADER = 100 << 20  # bytes of one safetensors header, as the format's own library allows
_MAX_SMALL = 64  # elements that may be read without loading weights

#: safetensors dtypes: bytes per element and struct code (None: no scalar form is read here).
SAFETENSORS_DTYPES: dict[str, tuple[int, str | None]] = {
    "BOOL": (1, "?"), "U8": (1, "B"), "I8": (1, "b"), "F8_E4M3": (1, None), "F8_E5M2": (1, None), "F8_E8M0": (1, "B"),
    "I16": (2, "h"), "U16": (2, "H"), "F16": (2, "e"), "BF16": (2, None), "I32": (4, "i"), "U32": (4, "I"),
    "F32": (4, "f"), "I64": (8, "q"), "U64": (8, "Q"), "F64": (8, "d"),
}  # fmt: skip


@attrs.frozen
class TensorInfo:
    """Where one tensor lies: its name, dtype (as safetensors spells it), shape, file and bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


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
        tensors = {}
        metadata = {}
        for file in weight_files(path):
            found, extra = read_header(file)
            for name in found.keys() & tensors.keys():
                raise CheckpointError(f"{name} is in both {tensors[name].file.name} and {file.name}")
            tensors |= found
            metadata |= extra
        _check_index(path, tensors)
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
        code = SAFETENSORS_DTYPES[info.dtype][1]
        count = math.prod(info.shape)
        if count > _MAX_SMALL or code is None:
            raise CheckpointError(f"{name}: {info.dtype} {list(info.shape)} is not a small integer or float tensor")
        with info.file.open("rb") as file:
            file.seek(info.begin)
            return list(struct.unpack(f"<{count}{code}", file.read(info.nbytes)))


#: Files that may hold a quantization configuration, beside the model's own config.json.
CONFIG_FILES: tuple[str, ...] = (
    "config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json", "params.json",
    "quantization_config.json",
)  # fmt: skip


def _read_configs(folder: Path) -> dict[str, Mapping[str, Any]]:
    return {name: read_json(folder / name) for name in CONFIG_FILES if (folder / name).is_file()}


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object from a file of bounded size.

    Raises:
        CheckpointError: too large, not JSON, or not an object.
    """
    if path.stat().st_size > MAX_JSON:
        raise CheckpointError(f"{path.name} has {path.stat().st_size} bytes; at most {MAX_JSON} are read")
    try:
        body = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise CheckpointError(f"{path.name} holds {type(body).__name__}, not an object")
    return body


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
        if Path(name).name != name or name in (".", ".."):
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
    if not isinstance(weight_map, dict) or not all(isinstance(f, str) for f in weight_map.values()):
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


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The tensors and the metadata that a safetensors file's header describes.

    Raises:
        CheckpointError: the header is too large or does not describe the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 <= length <= min(MAX_HEADER, size - 8):
            raise CheckpointError(
                f"{path.name} is truncated or not a safetensors file: "
                + (f"its header would have {length} bytes" if len(start) == 8 else f"it has {size} bytes")
            )
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path.name}: the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path.name}: the header is not an object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{path.name}: __metadata__ must map names to strings")
    data = 8 + length
    tensors = {name: _tensor_info(path, name, entry, data) for name, entry in header.items()}
    end = data
    for info in sorted(tensors.values(), key=lambda i: (i.begin, i.end)):
        if info.begin != end:
            raise CheckpointError(f"{path.name}: the bytes of {info.name} overlap another tensor's or leave a hole")
        end = info.end
    if end != size:
        what = "is truncated" if size < end else "holds bytes of no tensor"
        raise CheckpointError(f"{path.name} {what}: its header describes {end} bytes, and it has {size}")
    return tensors, metadata


def _tensor_info(path: Path, name: str, entry: Any, data: int) -> TensorInfo:
    where = f"{path.name}: {name}"
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        numbers = (*shape, begin, end)
    except (TypeError, KeyError, ValueError):
        raise CheckpointError(f"{where}: dtype, shape or data_offsets is missing") from None
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise CheckpointError(f"{where}: shape and data_offsets must be whole numbers")
    if not isinstance(dtype, str) or dtype not in SAFETENSORS_DTYPES:
        raise CheckpointError(f"{where}: unknown dtype {dtype!r}")
    if end - begin != math.prod(shape) * SAFETENSORS_DTYPES[dtype][0]:
        raise CheckpointError(f"{where}: {dtype} {list(shape)} does not fit bytes {begin} to {end}")
    return TensorInfo(name, dtype, shape, path, data + begin, data + end)
