"""Every checkpoint in ``data/quant``: which layers are quantized, and the numbers that they stand for."""

import pytest
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.importers import Recognized
from phyai.quant.layers import stored_layers
from phyai.quant.realize import dequantize, read_tensor, realize
from phyai.quant.recognition import recognize
from quant_cases import CHECKPOINTS, meta

torch = pytest.importorskip("torch")


def tensors(path):
    return {name: read_tensor(info) for name, info in Checkpoint.open(path).tensors.items()}


def test_all_checkpoints_are_there():
    assert len(CHECKPOINTS) == 22


@pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda p: p.name)
def test_layers_are_quantized_as_written(folder):
    checkpoint = Checkpoint.open(folder)
    recognized = recognize(checkpoint)
    assert isinstance(recognized, Recognized)
    layers = stored_layers(checkpoint, recognized)
    assert [layer.problem for layer in layers.values() if layer.problem] == []
    said = meta(folder)
    assert {n for n, layer in layers.items() if layer.scheme} == set(said["quantized_modules"])
    assert {n for n, layer in layers.items() if not layer.scheme} == set(said["unquantized_linears"])


@pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda p: p.name)
def test_weights_equal_the_librarys(folder):
    checkpoint = Checkpoint.open(folder)
    recognized = recognize(checkpoint)
    layers = stored_layers(checkpoint, recognized)
    expected = tensors(folder / "expected.safetensors")
    for name in meta(folder)["quantized_modules"]:
        weight = dequantize(realize(layers[name], recognized).weight)
        rows = expected.get(f"{name}.rows")
        got = weight if rows is None else weight[rows.long()]
        assert torch.equal(got, expected[f"{name}.weight"]), name


def without(checkpoint, name):
    import attrs

    return attrs.evolve(checkpoint, tensors={n: i for n, i in checkpoint.tensors.items() if n != name})


#: Tensors that a layer is whole without: what GPTQ and torchao store although it follows from the rest, what is
#: there only where it was not folded away, and biases.
OPTIONAL = ("g_idx", "_weight_zero_point", "pre_quant_scale", "bias")


@pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda p: p.name)
def test_no_layer_loads_with_a_tensor_missing(folder):
    checkpoint = Checkpoint.open(folder)
    recognized = recognize(checkpoint)
    for module in meta(folder)["quantized_modules"][:4]:
        for name in [n for n in checkpoint.tensors if n.rpartition(".")[0] == module and not n.endswith(OPTIONAL)]:
            layers = stored_layers(without(checkpoint, name), recognized, [module])
            assert module in layers[module].problem, name


@pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda p: p.name)
def test_no_layer_loads_with_a_tensor_of_another_shape_or_dtype(folder):
    import attrs

    checkpoint = Checkpoint.open(folder)
    recognized = recognize(checkpoint)
    for module in meta(folder)["quantized_modules"][:4]:
        for name in [n for n in checkpoint.tensors if n.rpartition(".")[0] == module]:
            info = checkpoint.tensors[name]
            for changed in (attrs.evolve(info, shape=(*info.shape, 3)), attrs.evolve(info, dtype="U16")):
                other = attrs.evolve(checkpoint, tensors={**checkpoint.tensors, name: changed})
                assert module in stored_layers(other, recognized, [module])[module].problem, name
