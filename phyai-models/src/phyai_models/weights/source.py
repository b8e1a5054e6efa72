"""Parameters by name: which tensors a model asks for, and taking them from a checkpoint."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Mapping

import attrs
import torch

from phyai.errors import CheckpointError
from phyai_models.weights.checkpoint import Checkpoint

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@attrs.frozen
class TensorSpec:
    """A tensor that a model asks for: its name in the checkpoint (without optional prefix) and its shape."""

    name: str
    shape: tuple[int, ...]


class WeightSource:
    """A checkpoint seen through a model's names.

    ``prefixes`` are what a file may put before every name; ``tied`` maps a name to another under which the same
    tensor may be stored instead, or as well; ``ignored`` are globs of tensors that the model has no use for,
    each with the reason. ``progress`` is called with the bytes of each tensor that has been read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        prefixes: tuple[str, ...] = ("",),
        tied: Mapping[str, str] | None = None,
        ignored: Mapping[str, str] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.prefixes = prefixes
        self.tied = dict(tied or {})
        self.ignored = dict(ignored or {})
        self.progress = progress
        self.not_finite: list[str] = []

    def stored(self, name: str) -> list[str]:
        """The checkpoint's own names for ``name``: normally one, none when it is missing."""
        names = (name, self.tied[name]) if name in self.tied else (name,)
        return [p + n for n in names for p in self.prefixes if p + n in self.checkpoint.tensors]

    def require(self, specs: Iterable[TensorSpec]) -> None:
        """Check that the checkpoint holds exactly ``specs``, looking at its headers only.

        Raises:
            CheckpointError: lists every missing, surplus, misshapen, wrongly typed and doubly stored tensor.
        """
        problems: list[str] = []
        missing: list[str] = []
        used: set[str] = set()
        for spec in specs:
            found = self.stored(spec.name)
            used.update(found)
            if not found:
                missing.append(spec.name)
            for name in found:
                info = self.checkpoint.tensors[name]
                if info.shape != spec.shape:
                    problems.append(f"{name} has shape {list(info.shape)}; the model asks for {list(spec.shape)}")
                elif info.dtype not in FLOATING:
                    problems.append(
                        f"{name} is stored as {str(info.dtype).removeprefix('torch.')}; "
                        "allowed are float32, bfloat16, float16 and float64, unless config.json describes a quantization"
                    )
            if len(found) > 1 and not self._same(found):
                problems.append(f"{' and '.join(found)} are one tensor of the model and differ")
        surplus = [n for n in self.checkpoint.tensors if n not in used and not self._is_ignored(n)]
        nearest = _Nearest(surplus or list(self.checkpoint.tensors))
        problems += [f"{name} is missing; {nearest.hint(name)}" for name in missing]
        wanted = _Nearest(missing) if missing else None
        problems += [f"{name} is not a tensor of this model" + (f"; {wanted.hint(name)}" if wanted else "") for name in surplus]
        if problems:
            listed = "\n  ".join(problems)
            raise CheckpointError(
                f"the weights in {self.checkpoint.directory} do not fit the model that its config.json describes "
                f"({len(problems)} {'problem' if len(problems) == 1 else 'problems'}):\n  {listed}"
            )

    def take(self, name: str, out: torch.Tensor) -> None:
        """Write the tensor ``name`` into ``out``, converting dtype and device.

        Nothing but the one tensor is held beside ``out``; where dtype and device agree, not even that.
        Tensors with NaN or infinite values are noted in :attr:`not_finite`.
        """
        stored = self.stored(name)[0]
        info = self.checkpoint.tensors[stored]
        direct = out.device.type == "cpu" and out.dtype == info.dtype and out.is_contiguous()
        value = self.checkpoint.read(stored, out if direct else None)
        if value.numel() and not all(torch.isfinite(bound) for bound in torch.aminmax(value)):
            self.not_finite.append(stored)
        if not direct:
            out.copy_(value)
        if self.progress is not None:
            self.progress(info.end - info.begin)

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
        bare = [stored.removeprefix(p) for p in self.prefixes]
        return any(fnmatch.fnmatchcase(name, glob) for name in bare for glob in self.ignored)

    def _same(self, names: list[str]) -> bool:
        infos = [self.checkpoint.tensors[n] for n in names]
        first = infos[0]
        if any((i.dtype, i.shape) != (first.dtype, first.shape) for i in infos):
            return False
        block = 1 << 24
        for offset in range(0, first.end - first.begin, block):
            parts = set()
            for info in infos:
                with info.path.open("rb") as file:
                    file.seek(info.begin + offset)
                    parts.add(file.read(min(block, info.end - info.begin - offset)))
            if len(parts) != 1:
                return False
        return True


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
