"""Quantize a checkpoint and write it as compressed-tensors stores one, a layer at a time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from phyai.catalog import Catalog
from phyai.engine.plugin import study_of
from phyai.errors import CheckpointError
from phyai.files.replacing import filling
from phyai.files.safetensors_file import TensorInfo
from phyai.plugins import discover
from phyai.policy import Policy
from phyai.quant import QuantPlan, QuantScheme, export, plan_from_policy
from phyai.quant.checkpoint import Checkpoint as Folder
from phyai.quant.importers import Recognized
from phyai.quant.layers import stored_layers
from phyai.quant.realize.rtn import NotFinite, quantize_rows
from phyai.quant.recognition import recognize
from phyai.quant.weight import QuantizedWeight

from phyai_models.weights import Checkpoint
from phyai_models.weights.checkpoint import INDEX, SINGLE
from phyai_models.weights.writer import SafetensorsWriter

#: Called with a layer's name in the checkpoint, its original weight (a reader of rows) and the quantized one.
Observe = Callable[[str, Callable[[int, int], torch.Tensor], QuantizedWeight], None]


@attrs.frozen
class LayerSizes:
    """One layer that was quantized: its name in the checkpoint and in the model, its scheme, and bytes of its weight
    with everything that belongs to it."""

    name: str
    path: str
    scheme: QuantScheme
    before: int
    after: int


@attrs.frozen
class Written:
    """What :func:`write_quantized` wrote. ``before`` and ``after`` are bytes of all tensors."""

    out: Path
    layers: tuple[LayerSizes, ...]
    kept: tuple[str, ...]
    before: int
    after: int


def write_quantized(
    checkpoint_dir: str | Path,
    policy: Policy,
    out: str | Path,
    *,
    catalog: Catalog | None = None,
    progress: Callable[[float, float], None] | None = None,
    observe: Observe | None = None,
) -> Written:
    """Quantize the linear layers of a checkpoint that the policy's ``quantization`` section reaches.

    ``out`` becomes a folder with the same files, config.json with a ``quantization_config``; it appears whole or not
    at all. Layers are named in rules as the model that owns the checkpoint names them, where one is installed,
    else as the checkpoint does. Loading ``out`` gives the same weights as quantizing the original when it is loaded.

    Raises:
        CheckpointError: ``out`` exists; the checkpoint is quantized already, or malformed; a layer's scheme is not
            one that compressed-tensors can express; no layer is reached; a weight is not finite.
        QuantPolicyError: the section is refused.
    """
    source, out = Path(checkpoint_dir), Path(out)
    plan = plan_from_policy(policy.quantization)
    chosen, kept = plan_writing(source, policy, out, catalog or discover())
    checkpoint = Checkpoint.open(source)
    total = sum(info.nbytes for info in checkpoint.tensors.values())
    job = _Job(checkpoint, total, chosen, plan.method or "rtn", progress, observe)
    with filling(out) as folder:
        layers = job.write(folder)
        _copy_others(source, folder)
        _write_config(source, folder, chosen, kept)
        _verify(folder, chosen)
    return Written(out, layers, kept, total, job.nbytes)


@attrs.frozen
class Chosen:
    """A layer to quantize, as the checkpoint and as the model call it."""

    name: str
    path: str
    scheme: QuantScheme
    shape: tuple[int, int]


def plan_writing(
    checkpoint_dir: str | Path, policy: Policy, out: str | Path, catalog: Catalog
) -> tuple[dict[str, Chosen], tuple[str, ...]]:
    """What :func:`write_quantized` will do, from headers alone: the layers to quantize, by name, and those kept.

    Raises:
        CheckpointError, QuantPolicyError: see :func:`write_quantized`; all but values that are not finite.
    """
    if Path(out).exists():
        raise CheckpointError(f"{out} exists and is not overwritten; give a new folder, or remove it first")
    above = next(folder for folder in Path(out).absolute().parents if folder.exists())
    if not os.access(above, os.W_OK):
        raise CheckpointError(f"{out} cannot be written: {above} is not writable")
    return choose(Path(checkpoint_dir), plan_from_policy(policy.quantization), catalog)


def choose(source: Path, plan: QuantPlan, catalog: Catalog) -> tuple[dict[str, Chosen], tuple[str, ...]]:
    """The layers that a plan reaches, by name, and the linear layers that it does not.

    Raises:
        CheckpointError: see :func:`write_quantized`.
    """
    folder = Folder.open(source)
    recognized = recognize(folder)
    if recognized is not None:
        method = recognized.method or "an unknown method"
        raise CheckpointError(f"{source} is quantized already ({method}); quantize the original weights")
    study = study_of(source, catalog)
    linears = stored_layers(folder, None)
    paths = {name: name for name in linears} if study is None else study.paths
    chosen: dict[str, Chosen] = {}
    problems = []
    for name, layer in linears.items():
        scheme = plan.scheme(paths[name]) if name in paths else None
        if scheme is None:
            continue
        assert layer.shape is not None  # only quantized layers can lack one
        try:
            export.require_expressible(scheme, layer.shape)
        except CheckpointError as error:
            problems.append(f"{paths[name]}: {error}")
        chosen[name] = Chosen(name, paths[name], scheme, layer.shape)
    if problems:
        more = f"\n  and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise CheckpointError("these layers cannot be written:\n  " + "\n  ".join(problems[:5]) + more)
    if not chosen:
        some = ", ".join(list(paths.values())[:3]) or "none at all"
        raise CheckpointError(f"no quantization rule reaches a linear layer of {source}; its layers are {some}, …")
    return chosen, tuple(name for name in linears if name not in chosen)


@attrs.define
class _Job:
    checkpoint: Checkpoint
    total: int
    chosen: Mapping[str, Chosen]
    method: str
    progress: Callable[[float, float], None] | None
    observe: Observe | None
    nbytes: int = 0
    layers: list[LayerSizes] = attrs.field(factory=list)
    _done: int = 0

    def write(self, folder: Path) -> tuple[LayerSizes, ...]:
        """Write every file of the checkpoint that holds tensors, under its own name, and the index of several."""
        files: dict[Path, list[TensorInfo]] = {}
        for info in self.checkpoint.tensors.values():
            files.setdefault(info.file, []).append(info)
        weight_map: dict[str, str] = {}
        for path, infos in files.items():
            with SafetensorsWriter(folder / path.name) as writer:
                for info in infos:
                    self._write_tensor(writer, info)
            self.nbytes += writer.nbytes
            weight_map |= dict.fromkeys(writer.names, path.name)
        if list(files) != [self.checkpoint.directory / SINGLE]:
            index = {"metadata": {"total_size": self.nbytes}, "weight_map": dict(sorted(weight_map.items()))}
            (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        return tuple(self.layers)

    def _write_tensor(self, writer: SafetensorsWriter, info: TensorInfo) -> None:
        module, _, suffix = info.name.rpartition(".")
        if suffix == "weight" and module in self.chosen:
            self._quantize(writer, info, self.chosen[module])
        else:
            writer.copy(info.name, info)
        self._done += info.nbytes
        if self.progress is not None:
            self.progress(self._done, self.total)

    def _quantize(self, writer: SafetensorsWriter, info: TensorInfo, layer: Chosen) -> None:
        def rows(begin: int, end: int) -> torch.Tensor:
            return self.checkpoint.read_rows(info.name, begin, end)

        try:
            weight = quantize_rows(rows, layer.shape, layer.scheme, method=self.method)
        except NotFinite as error:
            raise CheckpointError(f"{info.name}: {error}") from None
        after = writer.nbytes
        for suffix, tensor in export.encode(weight).items():
            writer.add(f"{layer.name}.{suffix}", tensor)
        sizes = LayerSizes(layer.name, layer.path, layer.scheme, info.nbytes, writer.nbytes - after)
        self.layers.append(sizes)
        if self.observe is not None:
            self.observe(layer.name, rows, weight)


def _copy_others(source: Path, folder: Path) -> None:
    """Everything that is not the weights: configuration, tokenizer, statistics."""
    for path in _others(source):
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copyfile(path, target)


def _others(source: Path) -> Iterator[Path]:
    for path in sorted(source.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(source).parts)
        if path.is_file() and not hidden and path.name != INDEX:
            yield path


def _write_config(source: Path, folder: Path, chosen: Mapping[str, Chosen], kept: tuple[str, ...]) -> None:
    by_scheme: dict[QuantScheme, list[str]] = {}
    for layer in chosen.values():
        by_scheme.setdefault(layer.scheme, []).append(layer.name)
    path = source / "config.json"
    body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    body["quantization_config"] = export.config(list(by_scheme.items()), kept)
    (folder / "config.json").write_text(json.dumps(body, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _verify(folder: Path, chosen: Mapping[str, Chosen]) -> None:
    """Refuse to hand out a checkpoint that would not be read as what was meant."""
    written = Folder.open(folder)
    recognized = recognize(written)
    assert isinstance(recognized, Recognized), recognized
    layers = stored_layers(written, recognized)
    for name, layer in chosen.items():
        found = layers[name]
        if found.problem is not None or found.scheme != layer.scheme:
            was = found.problem or f"read as {found.scheme}"
            raise CheckpointError(f"{name} was written as {layer.scheme} but is not read so: {was}")
