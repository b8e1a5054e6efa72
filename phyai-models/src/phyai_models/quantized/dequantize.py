"""Write a checkpoint's linear weights as plain numbers, one layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from phyai.catalog import Catalog
from phyai.errors import CheckpointError, InputError
from phyai.files.replacing import replacing
from phyai.files.safetensors_file import header
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.layers import stored_layers
from phyai.quant.realize import dequantize, realize
from phyai.quant.storage import StoredLayer
from phyai.quant.weight import QuantizedWeight

from phyai_models.quantized.linears import recognized_or_raise


def write_dequantized(
    checkpoint_dir: str | Path,
    out: str | Path,
    names: Iterable[str] | None = None,
    *,
    catalog: Catalog | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write ``NAME.weight`` (float32, ``[N, K]``) of every linear layer to a safetensors file.

    The file appears whole or not at all. Peak memory is one layer. Returns how many layers were written.

    Raises:
        CheckpointError: ``out`` exists; the checkpoint, or one of the layers, cannot be loaded exactly as it was
            written.
        InputError: ``out`` cannot be a file.
    """
    out = Path(out)
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(
            f"{out} cannot be written: " + ("it is" if out.is_dir() else f"{out.parent} is not") + " a folder"
        )
    if out.exists():
        raise CheckpointError(f"{out} exists and is not overwritten; give a new file, or remove it first")
    checkpoint = Checkpoint.open(checkpoint_dir)
    recognized = recognized_or_raise(checkpoint, catalog)
    layers = stored_layers(checkpoint, recognized, names)
    dense = {f"{name}.weight": ("F32", _shape(layer)) for name, layer in layers.items()}
    with replacing(out) as file:
        file.write(header(dense))
        for done, layer in enumerate(layers.values()):
            weight = realize(layer, recognized).weight
            plain = dequantize(weight) if isinstance(weight, QuantizedWeight) else weight.to(torch.float32)
            file.write(plain.contiguous().numpy().tobytes())
            if progress is not None:
                progress(done + 1, len(layers))
    return len(layers)


def _shape(layer: StoredLayer) -> tuple[int, int]:
    if layer.problem is not None or layer.shape is None:
        raise CheckpointError(layer.problem or f"{layer.name} has no shape")
    return layer.shape
