"""A checkpoint directory: one ``model.safetensors``, or shards with their index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs
import torch
from phyai.errors import CheckpointError
from phyai.files.safetensors_file import TensorInfo, read_tensor
from phyai.quant.checkpoint import stored_tensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


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
        if not any((directory / name).is_file() for name in (SINGLE, INDEX)):
            raise CheckpointError(f"{directory} holds neither {SINGLE} nor {INDEX}; put the checkpoint's weights there")
        return cls(directory, stored_tensors(directory)[0])

    def read(self, name: str, out: torch.Tensor | None = None) -> torch.Tensor:
        """The tensor called ``name`` on the CPU, in ``out`` when given (same dtype and shape, contiguous)."""
        return read_tensor(self.tensors[name], out)

    def read_rows(self, name: str, begin: int, end: int) -> torch.Tensor:
        """Rows ``begin`` to ``end - 1`` of the matrix called ``name``, on the CPU."""
        info = self.tensors[name]
        width = info.nbytes // max(info.shape[0], 1)
        shape = (end - begin, *info.shape[1:])
        rows = attrs.evolve(info, shape=shape, begin=info.begin + begin * width, end=info.begin + end * width)
        return read_tensor(rows)
