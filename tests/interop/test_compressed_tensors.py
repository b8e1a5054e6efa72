"""compressed-tensors itself: what PhyAI writes, it reads to the same weights; what it writes, PhyAI runs as it does."""

import json

import interop_models as models
import pytest
import torch
from phyai.policy import parse_policy
from phyai_models import load_linears
from phyai_models.quantized.writing import write_quantized
from safetensors.torch import load_file, save_file

pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed: run nox -s interop")

from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config


def policy(scheme):
    rule = {"match": {"name": ["up_proj", "down_proj"]}, "scheme": scheme}
    return parse_policy(json.dumps({"schema": "phyai.kernel/v1", "quantization": {"rules": [rule]}})).policy


def source(folder, dtype):
    folder.mkdir()
    model = models.small(dtype)
    save_file(model.state_dict(), folder / "model.safetensors")
    models.write_config(folder)
    return folder


def read_by_the_library(folder):
    """The model as the library loads it: compressed, then decompressed by the library."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    state = load_file(folder / "model.safetensors")
    parsed = QuantizationConfig.model_validate(config)
    model = models.small(next(t.dtype for n, t in state.items() if n == "head.weight"))
    apply_quantization_config(model, parsed)
    compressor = ModelCompressor(quantization_config=parsed)
    compressor.compress_model(model)
    own = dict(model.named_parameters())
    assert {n for n in own if "input" not in n and "output" not in n} == set(state)
    for name, tensor in state.items():
        module, _, suffix = name.rpartition(".")
        assert own[name].shape == tensor.shape, name
        setattr(model.get_submodule(module), suffix, torch.nn.Parameter(tensor, requires_grad=False))
    compressor.decompress_model(model)
    return model


SCHEMES = {
    "w4a16_g32": {"weight": {"dtype": "int4", "group_size": 32}},
    "w4a16_g32_bf16_scales": {"weight": {"dtype": "int4", "group_size": 32, "scale_dtype": "bf16"}},
    "w4a16_g32_zero_points": {"weight": {"dtype": "int4", "group_size": 32, "symmetric": False}},
    "w3a16_channel": {"weight": {"dtype": "int3"}},
    "w8a16_channel": {"weight": {"dtype": "int8"}},
    "w8a8": {"weight": {"dtype": "int8"}, "input": {"dtype": "int8"}},
    "w4a8": {"weight": {"dtype": "int4", "group_size": 32}, "input": {"dtype": "fp8_e4m3"}},
    "fp8": {"weight": {"dtype": "fp8_e4m3"}, "input": {"dtype": "fp8_e4m3"}},
    "fp8_tensor": {"weight": {"dtype": "fp8_e4m3", "granularity": "tensor"}},
    "fp8_block": {"weight": {"dtype": "fp8_e4m3", "block_shape": [16, 16]}},
    "mxfp4": {"weight": "mxfp4"},
    "mxfp8": {"weight": "mxfp8", "input": "mxfp8"},
    "nvfp4": {"weight": "nvfp4"},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", SCHEMES)
def test_the_library_reads_what_is_written_to_the_same_weights(name, dtype, tmp_path):
    write_quantized(source(tmp_path / "source", dtype), policy(SCHEMES[name]), tmp_path / "out")
    theirs = read_by_the_library(tmp_path / "out")
    ours = load_linears(tmp_path / "out")
    for layer in ("up_proj", "down_proj"):
        want = theirs.get_submodule(layer).weight.float()
        got = ours[layer].dequantized_weight()
        assert torch.equal(got.to(theirs.get_submodule(layer).weight.dtype).float(), want), layer


#: A preset of the library, with what its observers would have found filled in.
PRESETS = ["W4A16", "W8A16", "W8A8", "FP8_DYNAMIC", "MXFP4A16", "NVFP4A16", "MXFP8", "W4AFP8"]


def quantized_by_the_library(preset, folder):
    """A model that the library quantizes, with its own forward, and the checkpoint that it writes."""
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = preset_name_to_scheme(preset, ["Linear"])
    if scheme.weights.group_size == 128:
        scheme.weights.group_size = 32
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["head"])
    model = models.small()
    apply_quantization_config(model, config)
    for name in ("up_proj", "down_proj"):
        layer = model.get_submodule(name)
        args, weight = scheme.weights, layer.weight.detach()
        extra = {}
        if args.strategy == "tensor_group":
            layer.weight_global_scale.data = generate_gparam(weight.min(), weight.max())
            extra["global_scale"] = layer.weight_global_scale
        size = args.group_size if args.strategy in ("group", "tensor_group") else weight.shape[1]
        grouped = weight.reshape(weight.shape[0], -1, size)
        low, high = grouped.amin(-1), grouped.amax(-1)
        scale, zero = calculate_qparams(low, high, args, **extra)
        layer.weight_scale.data = scale.to(layer.weight_scale.dtype).reshape(layer.weight_scale.shape)
        if hasattr(layer, "weight_zero_point"):
            layer.weight_zero_point.data = zero.to(layer.weight_zero_point.dtype).reshape(layer.weight_zero_point.shape)
    x = models.inputs()[None]  # the library finds tokens in three dimensions
    with torch.no_grad():
        up = model.up_proj(x)
        down = model.down_proj(torch.relu(up))
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    folder.mkdir()
    save_file({n: t.contiguous() for n, t in model.state_dict().items()}, folder / "model.safetensors")
    models.write_config(folder)
    compressor.update_config(str(folder))
    return {"up_proj": (x, up), "down_proj": (torch.relu(up), down)}


@pytest.mark.parametrize("preset", PRESETS)
def test_what_the_library_writes_runs_as_its_own_forward(preset, tmp_path):
    expected = quantized_by_the_library(preset, tmp_path / "out")
    ours = load_linears(tmp_path / "out")
    for layer, (x, y) in expected.items():
        assert ours[layer].scheme is not None
        # an activation on a rounding tie may go either way, so rows are compared as a whole
        error = (ours[layer](x) - y).norm(dim=-1) / y.norm(dim=-1)
        assert error.max() < 5e-3, (layer, error)
