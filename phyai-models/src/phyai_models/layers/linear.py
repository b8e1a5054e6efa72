"""Linear layers, and the parameters of matrices that are used inside composite ops."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from phyai.errors import CheckpointError
from phyai.facts import FactValue
from phyai.quant import QuantScheme
from phyai.quant.realize import fuse, quantize_weight
from phyai.quant.weight import QuantizedWeight

from phyai_models.layers.base import Layer
from phyai_models.layers.scope import Scope
from phyai_models.weights import TensorSpec, WeightSource

_log = logging.getLogger("phyai.models")


@attrs.frozen
class Shard:
    """Rows of a fused matrix that are a matrix of their own in the checkpoint.

    ``path`` is its module path, by which a quantization rule finds it; ``source`` its name in the checkpoint.
    """

    path: str
    source: str
    rows: int

    @classmethod
    def of(cls, scope: Scope, name: str, rows: int) -> Shard:
        """The shard called ``name`` of the layer at ``scope``."""
        place = scope.at(name)
        return cls(place.path, place.source, rows)


@attrs.frozen(eq=False)
class LinearWeights:
    """What a matrix became: ``weight`` is a plain tensor or a :class:`phyai.quant.weight.QuantizedWeight`."""

    weight: Any
    bias: torch.Tensor | None = None

    @property
    def bound(self) -> dict[str, Any]:
        """The weights of a call of ``gemm``."""
        return {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}

    @property
    def facts(self) -> Mapping[str, FactValue]:
        """The ``quant.*`` facts of its form; none for a plain tensor."""
        return self.weight.facts() if isinstance(self.weight, QuantizedWeight) else {}

    def facts_of(self, part: str) -> dict[str, FactValue]:
        """The facts as those of one part of a composite op."""
        return {f"parts.{part}.{name}": value for name, value in self.facts.items()}


class LinearParameters:
    """A matrix ``[sum of rows, in_features]`` put together from shards, and its optional bias.

    :meth:`load` is where a matrix takes its final form. The scope's quantization plan says which shards are
    quantized; usually the matrix stays one, and where its shards' forms differ it becomes several.
    """

    def __init__(self, scope: Scope, in_features: int, shards: Sequence[Shard], *, bias: bool = False) -> None:
        self.scope = scope
        self.in_features = in_features
        self.shards = tuple(shards)
        self.bias = bias

    def tensors(self) -> Iterator[TensorSpec]:
        for shard in self.shards:
            yield TensorSpec(f"{shard.source}.weight", (shard.rows, self.in_features))
            if self.bias:
                yield TensorSpec(f"{shard.source}.bias", (shard.rows,))

    def load(self, source: WeightSource) -> tuple[LinearWeights, ...]:
        """Read the matrix: one :class:`LinearWeights`, or consecutive ones that together give its rows."""
        bias = self._stacked(source, "bias") if self.bias else None
        schemes = [self.scope.quantization.scheme(shard.path) for shard in self.shards]
        if not any(schemes):
            return (LinearWeights(self._stacked(source, "weight", self.in_features), bias),)
        quantized = {s.path: self._quantized(source, s, scheme) for s, scheme in zip(self.shards, schemes, strict=True)}
        parts = fuse(quantized)
        for note in dict.fromkeys(note for part in parts for note in part.notes):
            _log.info("%s", note)
        weights, row = [], 0
        for part in parts:
            rows = part.weight.shape[0]
            weights.append(LinearWeights(part.weight, None if bias is None else bias[row : row + rows]))
            row += rows
        return tuple(weights)

    def _stacked(self, source: WeightSource, name: str, *columns: int) -> torch.Tensor:
        """The shards' tensors called ``name``, one below the other, each read straight into its place."""
        stacked = self.scope.empty(sum(shard.rows for shard in self.shards), *columns)
        row = 0
        for shard in self.shards:
            source.take(f"{shard.source}.{name}", stacked[row : row + shard.rows])
            row += shard.rows
        return stacked

    def _quantized(self, source: WeightSource, shard: Shard, scheme: QuantScheme | None) -> Any:
        dtype = self.scope.dtype if scheme is None else torch.float32
        weight = self.scope.empty(shard.rows, self.in_features, dtype=dtype)
        source.take(f"{shard.source}.weight", weight)
        if scheme is None:
            return weight
        source.check_finite()  # no code stands for NaN
        return quantize_weight(weight, scheme, method=self.scope.quantization.method or "rtn")


def same_form(old: Sequence[Mapping[str, FactValue]], new: Sequence[Mapping[str, FactValue]], where: str) -> None:
    """Refuse new weights whose quantized form differs from that of those in use.

    Raises:
        CheckpointError: it does.
    """
    if list(old) != list(new):
        raise CheckpointError(
            f"{where}: the new weights are quantized into {[dict(f) for f in new]} and those in use into "
            f"{[dict(f) for f in old]}; make a new engine with them"
        )


class Matmul:
    """The product with a matrix that is one call of ``gemm``, or several side by side."""

    def __init__(self, scope: Scope, weights: Sequence[LinearWeights]) -> None:
        dtypes = {"x": scope.dtype, "y": scope.dtype}
        self.sites = [scope.bind("gemm", weights=part.bound, facts=part.facts, dtypes=dtypes) for part in weights]
        self.forms = [part.facts for part in weights]

    def refresh(self, weights: Sequence[LinearWeights]) -> None:
        """Take other values, in the same form."""
        same_form(self.forms, [part.facts for part in weights], self.sites[0].name)
        for site, part in zip(self.sites, weights, strict=True):
            site.refresh(part.bound)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.sites) == 1:
            y: torch.Tensor = self.sites[0].run(x)
            return y
        return torch.cat([site.run(x) for site in self.sites], dim=-1)


class Linear(Layer):
    """``y = x @ weight.T + bias`` for ``x [..., in_features]``.

    ``shards`` are the matrices that are fused into this one; by default it is one, named as the layer is.
    """

    def __init__(
        self,
        scope: Scope,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        shards: Sequence[Shard] | None = None,
    ) -> None:
        self.scope = scope
        shards = shards or (Shard(scope.path, scope.source, out_features),)
        self.parameters = LinearParameters(scope, in_features, shards, bias=bias)

    def tensors(self) -> Iterator[TensorSpec]:
        return self.parameters.tensors()

    def load(self, source: WeightSource) -> None:
        self.matmul = Matmul(self.scope, self.parameters.load(source))

    def refresh(self, source: WeightSource) -> None:
        self.matmul.refresh(self.parameters.load(source))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.matmul(x)
