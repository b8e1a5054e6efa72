"""Feed-forward networks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from phyai_models.layers.base import Layer
from phyai_models.layers.linear import Linear, LinearParameters, Shard
from phyai_models.layers.scope import Scope
from phyai_models.weights import TensorSpec, WeightSource


class Activation(Layer):
    """A pointwise function of ``x [..., width]``: ``silu``, ``gelu`` or ``gelu_tanh``."""

    def __init__(self, scope: Scope, activation: str, width: int) -> None:
        self.scope = scope
        self.activation = activation
        self.width = width

    def load(self, source: WeightSource) -> None:
        self.site = self.scope.bind(
            "activation", attrs={"activation": self.activation}, dtypes={"x": self.scope.dtype}, dims={"D": self.width}
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.site.run(x)
        return y


class MLP(Layer):
    """``fc2(activation(fc1(x)))``."""

    def __init__(self, scope: Scope, width: int, hidden: int, activation: str, *, bias: bool = True) -> None:
        self.fc1 = Linear(scope.at("fc1"), width, hidden, bias=bias)
        self.activation = Activation(scope.at("activation"), activation, hidden)
        self.fc2 = Linear(scope.at("fc2"), hidden, width, bias=bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.activation(self.fc1(x)))


class GatedMLP(Layer):
    """``down(activation(gate(x)) * up(x))``, gate and up as one matrix."""

    def __init__(self, scope: Scope, width: int, hidden: int, activation: str) -> None:
        self.scope = scope
        self.activation = activation
        shards = [Shard(f"{scope.source}.{name}", hidden) for name in ("gate_proj", "up_proj")]
        self.gate_up = LinearParameters(scope.at("gate_up_proj"), width, shards)
        self.down = LinearParameters(scope.at("down_proj"), hidden, [Shard(f"{scope.source}.down_proj", width)])

    def tensors(self) -> Iterator[TensorSpec]:
        yield from self.gate_up.tensors()
        yield from self.down.tensors()

    def load(self, source: WeightSource) -> None:
        parts = {"gate_up": self.gate_up.load(source), "down": self.down.load(source)}
        self.site = self.scope.bind(
            "gated_mlp",
            weights={name: part.bound for name, part in parts.items()},
            attrs={"activation": self.activation},
            facts={fact: value for name, part in parts.items() for fact, value in part.facts_of(name).items()},
            dtypes={"x": self.scope.dtype},
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.site.run(x)
        return y
