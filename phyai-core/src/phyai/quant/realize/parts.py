"""Pieces that several tools' decoders share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phyai.errors import CheckpointError
from phyai.quant.scheme import TensorQuant
from phyai.quant.storage import StoredLayer

if TYPE_CHECKING:
    import torch


def scalar(layer: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The one number of a tensor, as a float64 scalar.

    Raises:
        CheckpointError: it is zero or not finite, so that it cannot be a scale.
    """
    import torch

    value = tensor.reshape(()).to(torch.float64)
    if not bool(torch.isfinite(value)) or float(value) == 0.0:
        raise CheckpointError(f"{layer}: {name} is {float(value)}, which is no scale")
    return value


def input_parts(layer: StoredLayer, tensors: Mapping[str, torch.Tensor], *, divides: bool = False) -> dict[str, Any]:
    """The stored scales and zero points of a static input or output, by the names of ``QuantizedWeight``.

    A second scale of a dynamic input (NVFP4) is inverted when ``divides``.
    """
    import torch

    scheme, _ = layer.described()
    parts: dict[str, Any] = {}
    for prefix, quant in (("input", scheme.input), ("output", scheme.output)):
        stored = tensors.get(f"{prefix}_scale")
        if quant is None or stored is None:
            continue
        name = layer.tensors[f"{prefix}_scale"].name.rpartition(".")[2]
        value = scalar(layer.name, name, stored)
        if quant.second_scale:
            parts[f"{prefix}_scale"] = 1.0 / value if divides else value
        else:
            parts[f"{prefix}_scale"] = value.to(torch.float32)
        zero = tensors.get(f"{prefix}_zero_point")
        if zero is not None:
            parts[f"{prefix}_zero_point"] = zero.reshape(()).to(torch.float32)
    return parts


def trivial_g_idx(layer: str, quant: TensorQuant, g_idx: torch.Tensor) -> torch.Tensor | None:
    """``g_idx`` as int32, or None when it says no more than ``k // group_size``.

    Raises:
        CheckpointError: it names groups that there are not.
    """
    import torch

    assert quant.group_size is not None
    k = g_idx.numel()
    if int(g_idx.min()) < 0 or int(g_idx.max()) >= quant.groups(k):
        raise CheckpointError(f"{layer}: g_idx names groups outside 0 to {quant.groups(k) - 1}")
    ordinary = torch.arange(k, device=g_idx.device) // quant.group_size
    return None if torch.equal(g_idx.long(), ordinary) else g_idx.to(torch.int32)
