"""ModelOpt itself: what it quantizes and exports, PhyAI runs as its own simulated forward."""

import json

import interop_models as models
import pytest
import torch
from phyai_models import load_linears
from safetensors.torch import save_file

pytest.importorskip("modelopt", reason="nvidia-modelopt is not installed: run nox -s interop")

import modelopt.torch.quantization as mtq
from modelopt.torch.export.quant_utils import get_quant_config, postprocess_state_dict
from modelopt.torch.export.unified_export_hf import _export_quantized_weight

CONFIGS = ["FP8_DEFAULT_CFG", "FP8_PER_CHANNEL_PER_TOKEN_CFG", "INT8_WEIGHT_ONLY_CFG"]
ON_A_GPU = ["NVFP4_DEFAULT_CFG", "MXFP8_DEFAULT_CFG"]  # the library simulates these on a GPU only


def quantized_by_the_library(config, folder):
    """A model that the library quantizes, with its own forward, and the checkpoint that it exports."""
    model = models.small()
    batch = models.inputs(64, seed=3)
    mtq.quantize(model, getattr(mtq, config), lambda m: m(batch))
    x = models.inputs()
    with torch.no_grad():
        up = model.up_proj(x)
        hidden = torch.relu(up)
        expected = {"up_proj": (x, up), "down_proj": (hidden, model.down_proj(hidden))}
    quantization = get_quant_config(model)
    for layer in (model.up_proj, model.down_proj, model.head):
        _export_quantized_weight(layer, torch.float32)
    state = postprocess_state_dict(model.state_dict(), 0, None)
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    (folder / "hf_quant_config.json").write_text(json.dumps(quantization))
    models.write_config(folder)
    return expected


def parameters():
    gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="ModelOpt simulates it on a GPU only")
    return [*CONFIGS, *(pytest.param(name, marks=gpu) for name in ON_A_GPU)]


@pytest.mark.parametrize("config", parameters())
def test_what_the_library_exports_runs_as_its_own_forward(config, tmp_path):
    expected = quantized_by_the_library(config, tmp_path / "out")
    ours = load_linears(tmp_path / "out")
    for layer, (x, y) in expected.items():
        assert ours[layer].scheme is not None
        error = (ours[layer](x).float() - y.float()).norm(dim=-1) / y.float().norm(dim=-1)
        assert error.max() < 2e-2, (layer, error)  # activations that lie on a rounding tie may go either way
