"""Tensors of a checkpoint, read from where their headers say they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phyai.files import safetensors_file
from phyai.files.safetensors_file import TensorInfo

if TYPE_CHECKING:
    import torch


def read_tensor(info: TensorInfo, device: Any = None) -> torch.Tensor:
    """One tensor, as stored. E8M0 comes as uint8.

    Raises:
        CheckpointError: the file ended before the tensor did.
    """
    import torch

    tensor = safetensors_file.read_tensor(info)
    return (tensor.view(torch.uint8) if info.dtype == "F8_E8M0" else tensor).to(device)
