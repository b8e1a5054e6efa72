"""What quantizing a checkpoint cost: by layer, and in what the model answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from phyai.catalog import Catalog
from phyai.cli.command import Context
from phyai.engine.plugin import Study, study_of
from phyai.errors import CheckpointError, InputError
from phyai.files.safetensors_file import read_all
from phyai.policy import Policy
from phyai.quant.realize import dequantize
from phyai.quant.realize.quantize import quantize_input
from phyai.quant.weight import QuantizedWeight

from phyai_models.quantized.writing import LayerSizes, Written

#: Rows of each layer's inputs that output errors are measured on.
ROWS = 64
COLUMNS = ("layer", "scheme", "before", "after", "weight SQNR", "output SQNR")


@attrs.frozen
class LayerReport:
    """One layer. SQNR is ``10 log10(signal / error)`` in dB, by squares: of the weight, and of the outputs on inputs
    that were seen (None where there were none)."""

    sizes: LayerSizes
    weight_sqnr: float
    output_sqnr: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "layer": self.sizes.path, "name": self.sizes.name, "scheme": self.sizes.scheme.name,
            "bytes_before": self.sizes.before, "bytes_after": self.sizes.after,
            "weight_sqnr_db": _finite(self.weight_sqnr), "output_sqnr_db": _finite(self.output_sqnr),
        }  # fmt: skip


@attrs.frozen
class Answers:
    """Answers of the quantized model against those of the original, sample by sample."""

    cosine: tuple[float, ...]
    error: tuple[float, ...]

    @classmethod
    def between(cls, got: torch.Tensor, want: torch.Tensor) -> Answers:
        """Cosine, and error relative to the norm, of every sample ``[samples, ...]``."""
        got, want = got.flatten(1).double(), want.flatten(1).double()
        cosine = torch.nn.functional.cosine_similarity(got, want, dim=1)
        error = (got - want).norm(dim=1) / want.norm(dim=1).clamp(min=1e-300)
        return cls(tuple(cosine.tolist()), tuple(error.tolist()))

    @property
    def worst(self) -> int:
        """The sample with the smallest cosine."""
        return min(range(len(self.cosine)), key=self.cosine.__getitem__)

    def to_json(self) -> dict[str, Any]:
        return {
            "samples": len(self.cosine), "worst_sample": self.worst,
            "worst_cosine": self.cosine[self.worst], "mean_cosine": sum(self.cosine) / len(self.cosine),
            "worst_error": max(self.error), "mean_error": sum(self.error) / len(self.error),
            "cosine": list(self.cosine), "error": list(self.error),
        }  # fmt: skip


@attrs.frozen
class Report:
    """Every layer in the order of the checkpoint, and the answers where a model gives some."""

    layers: tuple[LayerReport, ...]
    answers: Answers | None
    before: int
    after: int
    observations: str

    def to_json(self) -> dict[str, Any]:
        return {
            "bytes_before": self.before, "bytes_after": self.after, "observations": self.observations,
            "answers": None if self.answers is None else self.answers.to_json(),
            "layers": [layer.to_json() for layer in self.layers],
        }  # fmt: skip

    def rows(self) -> list[tuple[str, ...]]:
        """The layers as text, in the order of :data:`COLUMNS`."""
        return [
            (
                layer.sizes.path, layer.sizes.scheme.name, f"{layer.sizes.before:,}", f"{layer.sizes.after:,}",
                _decibels(layer.weight_sqnr), _decibels(layer.output_sqnr),
            )
            for layer in self.layers
        ]  # fmt: skip

    def sentences(self) -> list[str]:
        """The answers in words."""
        if self.answers is None:
            return ["no installed model claims this checkpoint, so no answers were compared"]
        found = self.answers.to_json()
        return [
            f"answers to {found['samples']} samples ({self.observations}): the worst, sample {found['worst_sample']}, "
            f"has cosine {found['worst_cosine']:.6f} with the original's (mean {found['mean_cosine']:.6f})",
            f"their error relative to the original's norm is at most {found['worst_error']:.2e} "
            f"(mean {found['mean_error']:.2e})",
        ]

    def show(self, context: Context) -> None:
        """Print the table and the sentences."""
        context.table(COLUMNS, self.rows(), title="what quantizing costs, by layer")
        for sentence in self.sentences():
            context.say(sentence)

    def save(self, path: Path) -> None:
        """Write it as JSON, HTML or PNG, by the file's suffix."""
        if path.suffix == ".json":
            path.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
        elif path.suffix == ".html":
            from phyai_models.quantized.pages import page

            path.write_text(page(self), encoding="utf-8")
        else:
            from phyai_models.quantized.pages import picture

            picture(self, path)


@attrs.define
class Observer:
    """Watches the original model, then every layer as it is quantized, then the quantized model."""

    study: Study | None
    policy: Policy
    inputs: str | None
    samples: int
    original: torch.Tensor | None
    seen: Mapping[str, torch.Tensor]
    _layers: dict[str, tuple[float, float | None]] = attrs.field(factory=dict)

    @classmethod
    def of(
        cls, checkpoint: str | Path, policy: Policy, inputs: str | None, samples: int, catalog: Catalog,
        progress: Callable[[float, float], None],
    ) -> Observer:  # fmt: skip
        """Run the original once, to know its answers and what its layers are given.

        Raises:
            InputError: ``inputs`` is neither a batch of the model nor layers' inputs.
        """
        if samples < 1:
            raise InputError(f"--samples {samples}: give at least 1")
        study = study_of(checkpoint, catalog)
        if study is None:
            seen = {} if inputs is None else _layer_inputs(Path(inputs))
            return cls(None, policy, inputs, samples, None, seen)
        seen_rows: dict[str, torch.Tensor] = {}

        def watch(path: str, x: torch.Tensor) -> None:
            rows = x.reshape(-1, x.shape[-1])
            have = seen_rows.get(path)
            if have is None or have.shape[0] < ROWS:
                some = rows[:: max(rows.shape[0] // 8, 1)].to("cpu", torch.float32)
                seen_rows[path] = some if have is None else torch.cat([have, some])[:ROWS]

        progress(0, 1)
        original = study.answers(unquantized(policy), inputs=inputs, samples=samples, watch=watch)
        names = {name: path for name, path in study.paths.items() if path in seen_rows}
        return cls(study, policy, inputs, samples, original, {name: seen_rows[path] for name, path in names.items()})

    def observe(self, name: str, rows: Callable[[int, int], torch.Tensor], weight: QuantizedWeight) -> None:
        """Measure one layer; see :data:`phyai_models.quantized.writing.Observe`."""
        original = rows(0, weight.shape[0]).to(torch.float32)
        rounded = dequantize(weight)
        x = self.seen.get(name)
        output = None
        if x is not None:
            given = x
            if weight.scheme.input is not None:
                given = quantize_input(
                    x, weight.scheme.input, weight.input_scale, weight.input_zero_point
                ).dequantized()
            output = sqnr(x @ original.T, given @ rounded.T)
        self._layers[name] = (sqnr(original, rounded), output)

    def report(self, written: Written, progress: Callable[[float, float], None]) -> Report:
        """Run the quantized model, and put together what was measured."""
        answers = None
        progress(0, 1)
        if self.study is not None and self.original is not None:
            got = self.study.answers(self.policy, inputs=self.inputs, samples=self.samples)
            answers = Answers.between(got, self.original)
        layers = tuple(LayerReport(sizes, *self._layers[sizes.name]) for sizes in written.layers)
        where = "made-up observations" if self.inputs is None else f"observations of {self.inputs}"
        return Report(layers, answers, written.before, written.after, where)


def unquantized(policy: Policy) -> Policy:
    """The policy without its quantization section."""
    return attrs.evolve(policy, quantization=None)


def sqnr(signal: torch.Tensor, noisy: torch.Tensor) -> float:
    """Signal-to-quantization-noise ratio in dB; infinite where nothing changed."""
    power = float(signal.double().square().sum())
    noise = float((signal.double() - noisy.double()).square().sum())
    if noise == 0.0:
        return math.inf
    return 10.0 * math.log10(power / noise) if power else -math.inf


def _layer_inputs(path: Path) -> dict[str, torch.Tensor]:
    """Inputs of layers by name: the tensors ``NAME.x`` of a file."""
    try:
        tensors = read_all(path)
    except CheckpointError as error:
        raise InputError(str(error)) from error
    found = {n.removesuffix(".x"): t.reshape(-1, t.shape[-1]).float() for n, t in tensors.items() if n.endswith(".x")}
    if not found:
        raise InputError(f"{path} holds no tensor NAME.x; give the inputs of layers by the layers' names")
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _decibels(value: float | None) -> str:
    return "–" if value is None else "exact" if value == math.inf else f"{value:.1f} dB"
