"""One layer of a checkpoint as tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from phyai.errors import CheckpointError
from phyai.quant.formats import load
from phyai.quant.importers.base import Recognized
from phyai.quant.realize.reading import read_tensor
from phyai.quant.storage import StoredLayer
from phyai.quant.weight import QuantizedWeight

if TYPE_CHECKING:
    import torch


@attrs.frozen(eq=False)
class RealizedLayer:
    """A linear layer's tensors: ``weight`` is a :class:`QuantizedWeight`, or a tensor ``[N, K]`` as stored."""

    name: str
    weight: QuantizedWeight | torch.Tensor
    bias: torch.Tensor | None = None
    notes: tuple[str, ...] = ()

    @property
    def quantized(self) -> bool:
        return isinstance(self.weight, QuantizedWeight)


def realize(layer: StoredLayer, recognized: Recognized | None, device: Any = None) -> RealizedLayer:
    """Read and decode one layer. ``recognized`` is the checkpoint's, None for one that is not quantized.

    Raises:
        CheckpointError: the layer cannot be loaded as its author wrote it.
    """
    if layer.problem is not None:
        raise CheckpointError(layer.problem)
    tensors = {role: read_tensor(info, device) for role, info in layer.tensors.items()}
    e8m0 = layer.scheme is not None and layer.scheme.weight.scale_dtype == "e8m0"
    for role, tensor in tensors.items():
        if not _is_finite(tensor, e8m0=e8m0 and role == "scale"):
            suffix = layer.tensors[role].name.removeprefix(f"{layer.name}.")
            raise CheckpointError(f"{layer.name}: {suffix} holds NaN or infinite values; the file is damaged")
    bias = tensors.pop("bias", None)
    if layer.scheme is None:
        return RealizedLayer(layer.name, tensors["weight"], bias, layer.notes)
    assert recognized is not None
    decode = load(recognized.storages[str(layer.storage)].decode)
    return RealizedLayer(layer.name, decode(layer, tensors), bias, layer.notes)


def _is_finite(tensor: torch.Tensor, *, e8m0: bool) -> bool:
    """Whether a tensor as it is stored holds numbers only; ``e8m0``: its bytes are exponents."""
    import torch

    if tensor.numel() == 0:
        return True
    if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):  # without the sign, what is no number comes last
        largest = int((tensor.view(torch.uint8) & 0x7F).max())
        return largest < (0x7F if tensor.dtype == torch.float8_e4m3fn else 0x7C)
    if tensor.is_floating_point():
        return all(bool(torch.isfinite(bound)) for bound in torch.aminmax(tensor))
    return not e8m0 or int(tensor.max()) < 0xFF
