"""The quantized layers of a checkpoint, as a model's weight source sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
from phyai.errors import CheckpointError
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.importers import BUILTIN, Importer, Recognized, Refused
from phyai.quant.layers import stored_layers
from phyai.quant.realize import realize
from phyai.quant.recognition import recognize
from phyai.quant.storage import StoredLayer
from phyai.quant.weight import QuantizedWeight


@attrs.frozen
class QuantizedLayers:
    """Linear layers that a checkpoint stores quantized, by module name, with those that it cannot be loaded for."""

    recognized: Recognized
    layers: Mapping[str, StoredLayer]

    @classmethod
    def open(cls, directory: Path, importers: Iterable[Importer] = ()) -> QuantizedLayers | None:
        """What the checkpoint in ``directory`` stores quantized; None when nothing says or looks as if it did.

        Raises:
            CheckpointError: its quantization is not supported; the message says why and what would work.
        """
        checkpoint = Checkpoint.open(directory)
        outcome = recognize(checkpoint, (*importers, *BUILTIN))
        if isinstance(outcome, Refused):
            raise CheckpointError(f"{directory}: {outcome}")
        if outcome is None:
            return None
        layers = stored_layers(checkpoint, outcome)
        return cls(outcome, {n: layer for n, layer in layers.items() if layer.scheme is not None or layer.problem})

    def take(self, name: str, device: Any) -> QuantizedWeight:
        """The weight of the layer called ``name``, exactly as it is stored, in the plain layout.

        Raises:
            CheckpointError: it cannot be loaded so.
        """
        weight = realize(self.layers[name], self.recognized, device).weight
        assert isinstance(weight, QuantizedWeight)
        return weight

    def nbytes(self, name: str) -> int:
        """Bytes that the layer takes in the checkpoint, without its bias."""
        return sum(info.nbytes for role, info in self.layers[name].tensors.items() if role != "bias")
