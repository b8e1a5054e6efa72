"""Linear layers, and the parameters of matrices that are used inside composite ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from phyai.facts import FactValue

from phyai_models.layers.base import Layer
from phyai_models.layers.scope import Scope
from phyai_models.weights import TensorSpec, WeightSource


@attrs.frozen
class Shard:
    """Rows of a fused matrix that are a matrix of their own in the checkpoint."""

    source: str
    rows: int


@attrs.frozen
class LinearWeights:
    """What a matrix became: the tensors to bind (``weight``, ``bias``), and the ``quant.*`` facts of its form."""

    tensors: Mapping[str, Any]
    facts: Mapping[str, FactValue] = attrs.field(factory=dict)

    @property
    def bound(self) -> Any:
        """What a composite op binds for this matrix: the plain tensor, or all tensors of another form."""
        return self.tensors["weight"] if set(self.tensors) == {"weight"} and not self.facts else self.tensors

    def facts_of(self, part: str) -> dict[str, FactValue]:
        """The facts as those of one part of a composite op."""
        return {f"parts.{part}.{name}": value for name, value in self.facts.items()}


class LinearParameters:
    """A matrix ``[sum of rows, in_features]`` put together from shards, and its optional bias.

    :meth:`load` is where a matrix takes its final form: it returns the tensors that call sites bind and the
    facts that say what they are.
    """

    def __init__(self, scope: Scope, in_features: int, shards: Sequence[Shard], *, bias: bool = False) -> None:
        self.scope = scope
        self.in_features = in_features
        self.shards = tuple(shards)
        self.bias = bias

    @property
    def out_features(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def tensors(self) -> Iterator[TensorSpec]:
        for shard in self.shards:
            yield TensorSpec(f"{shard.source}.weight", (shard.rows, self.in_features))
            if self.bias:
                yield TensorSpec(f"{shard.source}.bias", (shard.rows,))

    def load(self, source: WeightSource) -> LinearWeights:
        tensors = {"weight": self.scope.empty(self.out_features, self.in_features)}
        if self.bias:
            tensors["bias"] = self.scope.empty(self.out_features)
        row = 0
        for shard in self.shards:
            for name, tensor in tensors.items():
                source.take(f"{shard.source}.{name}", tensor[row : row + shard.rows])
            row += shard.rows
        return LinearWeights(tensors)


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
        self.parameters = LinearParameters(
            scope, in_features, shards or (Shard(scope.source, out_features),), bias=bias
        )

    def tensors(self) -> Iterator[TensorSpec]:
        return self.parameters.tensors()

    def load(self, source: WeightSource) -> None:
        weights = self.parameters.load(source)
        self.site = self.scope.bind(
            "gemm", weights=weights.tensors, facts=weights.facts, dtypes={"x": self.scope.dtype, "y": self.scope.dtype}
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.site.run(x)
        return y
