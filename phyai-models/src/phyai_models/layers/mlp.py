"""Feed-forward networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from phyai.facts import FactValue

from phyai_models.layers.base import Layer
from phyai_models.layers.linear import Linear, LinearParameters, LinearWeights, Matmul, Shard, same_form
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

    def refresh(self, source: WeightSource) -> None:
        pass

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
        self.attrs = {"activation": activation}
        shards = [Shard.of(scope, name, hidden) for name in ("gate_proj", "up_proj")]
        self.gate_up = LinearParameters(scope.at("gate_up_proj"), width, shards)
        self.down = LinearParameters(scope.at("down_proj"), hidden, [Shard.of(scope, "down_proj", width)])

    def tensors(self) -> Iterator[TensorSpec]:
        yield from self.gate_up.tensors()
        yield from self.down.tensors()

    def refresh(self, source: WeightSource) -> None:
        gate_up, down = self.gate_up.load(source), self.down.load(source)
        if self.fused is None:
            self.gate_up_matmul.refresh(gate_up)
            self.down_matmul.refresh(down)
            return
        same_form(self.forms, _forms(gate_up, down), self.fused.name)
        self.fused.refresh({"gate_up": gate_up[0].weight, "down": down[0].weight})

    def load(self, source: WeightSource) -> None:
        gate_up, down = self.gate_up.load(source), self.down.load(source)
        self.forms = _forms(gate_up, down)
        dtypes = {"x": self.scope.dtype}
        self.fused = None
        if len(gate_up) == 1:
            self.fused = self.scope.bind(
                "gated_mlp",
                weights={"gate_up": gate_up[0].weight, "down": down[0].weight},
                attrs=self.attrs,
                facts={**gate_up[0].facts_of("gate_up"), **down[0].facts_of("down")},
                dtypes=dtypes,
                layouts={**gate_up[0].layouts("gate_up"), **down[0].layouts("down")},
            )
            return
        self.gate_up_matmul = Matmul(self.gate_up.scope, gate_up)
        dims = {"I": self.down.in_features}
        self.act = self.scope.bind("gated_activation", attrs=self.attrs, dtypes=dtypes, dims=dims)
        self.down_matmul = Matmul(self.down.scope, down)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor
        if self.fused is not None:
            y = self.fused.run(x)
            return y
        return self.down_matmul(self.act.run(self.gate_up_matmul(x)))


def _forms(*matrices: Sequence[LinearWeights]) -> list[Mapping[str, FactValue]]:
    return [part.facts for matrix in matrices for part in matrix]
