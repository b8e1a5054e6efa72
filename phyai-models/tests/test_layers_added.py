"""Layers that add what they compute to a residual, gated: the same bits as a layer that does not, and the addition."""

import pytest
import torch
from phyai.dispatch import Dispatcher
from phyai.environment import Device, Environment
from phyai.policy import Policy
from phyai.quant import QuantScheme, TensorQuant
from phyai.quant.plan import QuantPlan
from phyai_models.layers import GatedMLP, Linear, Scope
from phyai_models.weights import RandomSource

INT8 = QuantPlan(default=QuantScheme(TensorQuant("int8", "channel")))


@pytest.fixture(params=[QuantPlan(), INT8], ids=["plain", "int8"])
def scope(request, catalog):
    dispatcher = Dispatcher(catalog, Policy(), Environment(Device("cpu")))
    return Scope(
        dispatcher, torch.device("cpu"), "layer", "layer", torch.bfloat16, torch.bfloat16, role="expert",
        quantization=request.param,
    )  # fmt: skip


def inputs(rows, gates, width=8):
    make = torch.Generator().manual_seed(5)
    return [torch.randn(n, width, generator=make).bfloat16() for n in (rows, rows, gates)]


LAYERS = {
    "linear": lambda scope, **more: Linear(scope.at("o_proj"), 8, 8, **more),
    "mlp": lambda scope, **more: GatedMLP(scope.at("mlp"), 8, 16, "gelu_tanh", **more),
}


@pytest.mark.parametrize("gates", [1, 3])
@pytest.mark.parametrize("kind", LAYERS)
def test_it_gives_the_bits_of_the_layer_and_of_the_addition_apart(kind, gates, scope):
    added, apart = (LAYERS[kind](scope, add=add) for add in (True, False))
    for layer in (added, apart):
        layer.load(RandomSource(1))
    add = scope.bind("gated_residual", dtypes=dict.fromkeys(("residual", "x", "gate"), scope.dtype), dims={"D": 8})
    x, residual, gate = inputs(6, gates)
    assert torch.equal(added(x, residual, gate), add.run(residual, apart(x), gate))


def test_new_weights_reach_it(scope):
    layer = LAYERS["mlp"](scope, add=True)
    layer.load(RandomSource(1))
    x, residual, gate = inputs(6, 1)
    before = layer(x, residual, gate)
    layer.refresh(RandomSource(2))
    assert not torch.equal(layer(x, residual, gate), before)
