"""Feed-forward networks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from phyai_models.layers.base import Layer
from phyai_models.layers.linear import LinearParameters, LinearWeights, Matmul, Shard
from phyai_models.layers.norm import RMSNorm
from phyai_models.layers.normed import Normed
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
    """``fc2(activation(fc1(x)))``, both with a bias."""

    def __init__(self, scope: Scope, width: int, hidden: int, activation: str) -> None:
        self.scope = scope
        self.attrs = {"activation": activation}
        self.fc1 = LinearParameters(scope.at("fc1"), width, [Shard.of(scope, "fc1", hidden)], bias=True)
        self.fc2 = LinearParameters(scope.at("fc2"), hidden, [Shard.of(scope, "fc2", width)], bias=True)

    def tensors(self) -> Iterator[TensorSpec]:
        yield from self.fc1.tensors()
        yield from self.fc2.tensors()

    def load(self, source: WeightSource) -> None:
        (fc1,), (fc2,) = self.fc1.load(source), self.fc2.load(source)  # a matrix of one shard stays one
        self.site = self.scope.bind(
            "mlp",
            weights=_bound(fc1, fc2),
            attrs=self.attrs,
            facts={**fc1.facts_of("fc1"), **fc2.facts_of("fc2")},
            dtypes={"x": self.scope.dtype, "y": self.scope.dtype},
            layouts={**fc1.layouts("fc1"), **fc2.layouts("fc2")},
        )

    def refresh(self, source: WeightSource) -> None:
        (fc1,), (fc2,) = self.fc1.load_again(source), self.fc2.load_again(source)
        self.site.refresh(_bound(fc1, fc2))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.site.run(x)
        return y


def _bound(fc1: LinearWeights, fc2: LinearWeights) -> dict[str, Any]:
    """The weights of a call of ``mlp``."""
    return {"fc1": fc1.weight, "fc1_bias": fc1.bias, "fc2": fc2.weight, "fc2_bias": fc2.bias}


class GatedMLP(Normed):
    """``down(activation(gate(x)) * up(x))``, gate and up as one matrix.

    With ``add`` it is called with ``x``, a residual and a gate, and gives ``residual + gate * y``. A ``norm`` is
    applied to x first; where that adds, it is called with the ``residual`` of it.
    """

    def __init__(
        self,
        scope: Scope,
        width: int,
        hidden: int,
        activation: str,
        *,
        add: bool = False,
        norm: RMSNorm | None = None,
    ) -> None:
        self.scope = scope
        self.add = add
        self.norm = norm
        self.attrs = {"activation": activation}
        shards = [Shard.of(scope, name, hidden) for name in ("gate_proj", "up_proj")]
        self.gate_up = LinearParameters(scope.at("gate_up_proj"), width, shards)
        self.down = LinearParameters(scope.at("down_proj"), hidden, [Shard.of(scope, "down_proj", width)])

    def tensors(self) -> Iterator[TensorSpec]:
        yield from super().tensors()
        yield from self.gate_up.tensors()
        yield from self.down.tensors()

    def refresh(self, source: WeightSource) -> None:
        gate_up, down = self.gate_up.load_again(source), self.down.load_again(source)
        if self.fused is None:
            self.refresh_norm(source)
            self.gate_up_matmul.refresh(gate_up)
            self.down_matmul.refresh(down)
            return
        self.refresh_fused(source, {"gate_up": gate_up[0].weight, "down": down[0].weight})

    def load(self, source: WeightSource) -> None:
        gate_up, down = self.gate_up.load(source), self.down.load(source)
        dtypes = {"x": self.scope.dtype}
        if len(gate_up) == 1:
            within = "gated_mlp.parts." if self.add else ""
            self.bind_fused(
                "gated_mlp_gated_residual" if self.add else "gated_mlp",
                source,
                weights={"gate_up": gate_up[0].weight, "down": down[0].weight},
                attrs=self.attrs,
                facts={**gate_up[0].facts_of(f"{within}gate_up"), **down[0].facts_of(f"{within}down")},
                dtypes={**dtypes, **dict.fromkeys(("residual", "gate") if self.add else (), self.scope.dtype)},
                layouts={**gate_up[0].layouts("gate_up"), **down[0].layouts("down")},
            )
            return
        self.load_norm(source)
        self.gate_up_matmul = Matmul(self.gate_up.scope, gate_up)
        dims = {"I": self.down.in_features}
        self.act = self.scope.bind("gated_activation", attrs=self.attrs, dtypes=dtypes, dims=dims)
        self.down_matmul = Matmul(self.down.scope, down, add=self.add)

    def __call__(self, x: torch.Tensor, *onto: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        inputs = self.inputs(x, residual)
        if self.fused is not None:
            y: torch.Tensor = self.fused.run(*inputs, *onto)
            return y
        return self.down_matmul(self.act.run(self.gate_up_matmul(*inputs)), *onto)
