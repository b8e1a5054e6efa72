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
    bias = tensors.pop("bias", None)
    if layer.scheme is None:
        return RealizedLayer(layer.name, tensors["weight"], bias, layer.notes)
    assert recognized is not None
    decode = load(recognized.storages[str(layer.storage)].decode)
    return RealizedLayer(layer.name, decode(layer, tensors), bias, layer.notes)
