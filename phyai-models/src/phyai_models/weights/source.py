"""Parameters by name: which tensors a model asks for, and taking them from a checkpoint."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
import torch
from phyai.errors import CheckpointError
from phyai.quant import QuantScheme
from phyai.quant.realize.groups import CHUNK
from phyai.quant.realize.rtn import NotFinite, quantize_rows
from phyai.quant.storage import KV_CACHE_SUFFIXES, StoredLayer
from phyai.quant.weight import QuantizedWeight

from phyai_models.weights.checkpoint import Checkpoint
from phyai_models.weights.quantized import QuantizedLayers

#: Elements that are quantized at a time, on devices that want more of them than a CPU's cache does.
_CHUNKS = {"cuda": 1 << 23}
FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@attrs.frozen
class TensorSpec:
    """A tensor that a model asks for: its name in the checkpoint (without optional prefix) and its shape.

    A ``matrix`` is the weight of a linear layer, which a checkpoint may store quantized.
    """

    name: str
    shape: tuple[int, ...]
    matrix: bool = False


class WeightSource:
    """A checkpoint seen through a model's names.

    ``prefixes`` are what a file may put before every name; ``stand_ins`` maps a name to another whose tensor is
    taken where that name is not stored (tied embeddings); ``ignored`` are globs of tensors that the model has no
    use for, each with the reason. ``quantized`` are the layers that it stores quantized. ``progress`` is called with
    the bytes of each tensor that has been read.
    """

    quantized: QuantizedLayers | None = None

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        prefixes: tuple[str, ...] = ("",),
        stand_ins: Mapping[str, str] | None = None,
        ignored: Mapping[str, str] | None = None,
        quantized: QuantizedLayers | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.quantized = quantized
        self.prefixes = prefixes
        self.stand_ins = dict(stand_ins or {})
        self.ignored = dict(ignored or {})
        self.progress = progress
        self.not_finite: list[str] = []

    def stored(self, name: str) -> list[str]:
        """The checkpoint's own names for ``name``: one, none when it is missing, several when it is ambiguous."""
        for candidate in (name, self.stand_ins.get(name)):
            found = (
                [p + candidate for p in self.prefixes if p + candidate in self.checkpoint.tensors] if candidate else []
            )
            if found:
                return found
        return []

    def stored_quantized(self, name: str) -> StoredLayer | None:
        """The linear layer of module ``name``, when the checkpoint stores it quantized."""
        layers: Mapping[str, StoredLayer] = self.quantized.layers if self.quantized is not None else {}
        return next((layers[p + name] for p in self.prefixes if p + name in layers), None)

    def require(self, specs: Iterable[TensorSpec]) -> None:
        """Check that the checkpoint holds exactly ``specs``, looking at its headers only.

        Raises:
            CheckpointError: lists every missing, surplus, misshapen, wrongly typed and doubly stored tensor.
        """
        problems: list[str] = []
        missing: list[str] = []
        used: set[str] = set()
        for spec in specs:
            layer = self.stored_quantized(spec.name.removesuffix(".weight")) if spec.name.endswith(".weight") else None
            if layer is not None:
                used.update(n for n in self.checkpoint.tensors if n.rpartition(".")[0] == layer.name)
                problems += _misfit(layer, spec)
                continue
            found = self.stored(spec.name)
            used.update(found)
            if not found:
                missing.append(spec.name)
            for name in found:
                info = self.checkpoint.tensors[name]
                if info.shape != spec.shape:
                    problems.append(f"{name} has shape {list(info.shape)}; the model asks for {list(spec.shape)}")
                elif info.torch_dtype not in FLOATING:
                    problems.append(
                        f"{name} is stored as {str(info.torch_dtype).removeprefix('torch.')}; "
                        "allowed are float32, bfloat16, float16 and float64, unless config.json quantizes it"
                    )
            if len(found) > 1:
                problems.append(f"{' and '.join(found)} are the same tensor of the model; only one may be stored")
        surplus = [n for n in self.checkpoint.tensors if n not in used and not self._is_ignored(n)]
        nearest = _Nearest(surplus or list(self.checkpoint.tensors))
        problems += [f"{name} is missing; {nearest.hint(name)}" for name in missing]
        wanted = _Nearest(missing) if missing else None
        problems += [
            f"{name} is not a tensor of this model" + (f"; {wanted.hint(name)}" if wanted else "") for name in surplus
        ]
        if problems:
            listed = "\n  ".join(problems)
            raise CheckpointError(
                f"the weights in {self.checkpoint.directory} do not fit the model that its config.json describes "
                f"({len(problems)} {'problem' if len(problems) == 1 else 'problems'}):\n  {listed}"
            )

    def take_quantized(self, name: str, device: torch.device) -> QuantizedWeight:
        """The weight of module ``name``, of which :meth:`stored_quantized` gives the layer, exactly as it is stored.

        Raises:
            CheckpointError: it cannot be loaded so.
        """
        layer = self.stored_quantized(name)
        assert layer is not None
        assert self.quantized is not None
        weight = self.quantized.take(layer.name, device)
        if self.progress is not None:
            self.progress(self.quantized.nbytes(layer.name))
        return weight

    def quantize(
        self,
        name: str,
        shape: tuple[int, int],
        scheme: QuantScheme,
        method: str,
        device: torch.device,
        *,
        below: Sequence[tuple[str, int]] = (),
    ) -> QuantizedWeight:
        """The matrix ``name``, quantized on ``device`` while it is read: some rows of it are held at a time.

        ``below`` are others, with their rows, that lie below it in one matrix of ``shape``: what a scheme computes of a
        whole tensor is then of all of them.

        Raises:
            CheckpointError: one holds NaN or infinite values, or the scheme needs more than the weight.
        """
        first = (name, shape[0] - sum(rows for _, rows in below))
        parts = [(self.stored(part)[0], rows) for part, rows in (first, *below)]
        reading = ""

        def rows(begin: int, end: int) -> torch.Tensor:
            nonlocal reading
            found, top = [], 0
            for stored, count in parts:
                low, high = max(begin - top, 0), min(end - top, count)
                if low < high:
                    reading = stored
                    found.append(self.checkpoint.read_rows(stored, low, high).to(device))
                top += count
            return found[0] if len(found) == 1 else torch.cat(found)

        try:
            weight = quantize_rows(rows, shape, scheme, method=method, chunk=_CHUNKS.get(device.type, CHUNK))
        except NotFinite:
            self.not_finite.append(reading)
            self.check_finite()
            raise
        if self.progress is not None:
            self.progress(sum(self.checkpoint.tensors[stored].nbytes for stored, _ in parts))
        return weight

    def take(self, name: str, out: torch.Tensor) -> None:
        """Write the tensor ``name`` into ``out``, converting dtype and device.

        Nothing but the one tensor is held beside ``out``; where dtype and device agree, not even that.
        Tensors with NaN or infinite values are noted in :attr:`not_finite`.
        """
        stored = self.stored(name)[0]
        info = self.checkpoint.tensors[stored]
        direct = out.device.type == "cpu" and out.dtype == info.torch_dtype and out.is_contiguous()
        value = self.checkpoint.read(stored, out if direct else None)
        if value.numel() and not all(torch.isfinite(bound) for bound in torch.aminmax(value)):
            self.not_finite.append(stored)
        if not direct:
            out.copy_(value)
        if self.progress is not None:
            self.progress(info.nbytes)

    def check_finite(self) -> None:
        """Raise when a tensor that was taken had NaN or infinite values.

        Raises:
            CheckpointError: names all of them.
        """
        if self.not_finite:
            listed = "\n  ".join(self.not_finite)
            raise CheckpointError(
                f"{self.checkpoint.directory}: NaN or infinite values in {len(self.not_finite)} tensors; "
                f"the file is damaged or training diverged:\n  {listed}"
            )

    def _is_ignored(self, stored: str) -> bool:
        if self.quantized is not None and stored.rpartition(".")[2] in KV_CACHE_SUFFIXES:
            return True  # reported by `phyai inspect`; caches stay in the precision of the activations
        bare = [stored.removeprefix(p) for p in self.prefixes]
        globs = (*self.ignored, *self.stand_ins.values())
        return any(fnmatch.fnmatchcase(name, glob) for name in bare for glob in globs)


def _misfit(layer: StoredLayer, spec: TensorSpec) -> list[str]:
    """Why a layer that is stored quantized is not the one that a model asks for; nothing when it is."""
    if layer.problem is not None:
        return [layer.problem]
    if not spec.matrix:
        return [f"{layer.name} is stored quantized, and the model has no linear layer there"]
    if layer.shape != spec.shape:
        return [f"{layer.name} has a weight of shape {list(layer.shape or ())}; the model asks for {list(spec.shape)}"]
    return []


class _Nearest:
    """Finds the candidate that a name most likely stands for."""

    def __init__(self, candidates: list[str]) -> None:
        self.parts = [(name, frozenset(name.split("."))) for name in candidates]

    def hint(self, name: str) -> str:
        words = frozenset(name.split("."))
        ranked = sorted(self.parts, key=lambda c: len(words ^ c[1]))[:3]
        if not ranked:
            return "there are no others"
        best = max((c[0] for c in ranked), key=lambda c: difflib.SequenceMatcher(None, name, c).ratio())
        return f"the nearest name is {best}"
