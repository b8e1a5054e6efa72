"""Whatever one tensor of a stored layer is missing, left over, or of another shape or dtype: the error names the layer
and the tensor."""

import json

import pytest
from phyai.errors import CheckpointError
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.layers import stored_layers
from phyai.quant.recognition import recognize
from stored_layers import FP8_BLOCK, NAME, awq_layer, gptq, gptq_layer, load, packed_config, packed_layer

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file


FORMS = {
    "gptq": (lambda: gptq_layer(4, 32, 64, 32)[0], gptq()),
    "awq": (lambda: awq_layer()[0], {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}),
    "packed": (lambda: packed_layer(4, 40, 96, 3, zero_points=True)[0], packed_config(symmetric=False)),
    "fp8 block": (
        lambda: {"weight": torch.randn(256, 256).to(torch.float8_e4m3fn), "weight_scale_inv": torch.rand(2, 2)},
        FP8_BLOCK,
    ),
    "fp8 static": (
        lambda: {
            "weight": torch.randn(64, 64).to(torch.float8_e4m3fn),
            "weight_scale": torch.rand(1),
            "input_scale": torch.rand(1),
        },
        {"quant_method": "fp8", "activation_scheme": "static"},
    ),
    "modelopt nvfp4": (
        lambda: {
            "weight": torch.zeros(32, 32, dtype=torch.uint8),
            "weight_scale": torch.ones(32, 4).to(torch.float8_e4m3fn),
            "weight_scale_2": torch.tensor(1.0),
            "input_scale": torch.tensor(1.0),
        },
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
    ),
    "modelopt fp8": (
        lambda: {
            "weight": torch.randn(64, 64).to(torch.float8_e4m3fn),
            "weight_scale": torch.tensor(0.1),
            "input_scale": torch.tensor(0.1),
        },
        {"quant_method": "modelopt", "quant_algo": "FP8"},
    ),
}
TENSORS = [(form, suffix) for form, (make, _) in FORMS.items() for suffix in make()]


@pytest.mark.parametrize("form", FORMS)
def test_complete_layers_load(tmp_path, form):
    make, config = FORMS[form]
    load(tmp_path, make(), config)


@pytest.mark.parametrize(("form", "suffix"), [p for p in TENSORS if p[1] != "g_idx"])
def test_a_missing_tensor_is_an_error(tmp_path, form, suffix):
    make, config = FORMS[form]
    tensors = make()
    del tensors[suffix]
    with pytest.raises(CheckpointError, match=rf"down_proj: .*{suffix}.* is missing"):
        load(tmp_path, tensors, config)


@pytest.mark.parametrize(("form", "suffix"), TENSORS)
def test_a_misshapen_tensor_is_an_error(tmp_path, form, suffix):
    make, config = FORMS[form]
    tensors = make()
    tensors[suffix] = torch.stack([tensors[suffix], tensors[suffix]])
    with pytest.raises(CheckpointError, match="down_proj: "):
        load(tmp_path, tensors, config)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", ["weight_scale_3", "output_scale", "pre_scale", "lora_A"])
def test_a_surplus_tensor_is_an_error(tmp_path, form, suffix):
    make, config = FORMS[form]
    with pytest.raises(CheckpointError, match=f"down_proj: {suffix} should not be there"):
        load(tmp_path, {**make(), suffix: torch.ones(1)}, config)


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_that_the_configuration_leaves_out_must_not_be_quantized(tmp_path, form):
    make, config = FORMS[form]
    skip = {
        "gptq": {"dynamic": {f"-:.*{NAME}": {}}}, "awq": {"modules_to_not_convert": [NAME]},
        "compressed-tensors": {"ignore": [NAME]}, "fp8": {"ignored_layers": [NAME]},
        "modelopt": {"exclude_modules": [NAME]},
    }[config["quant_method"]]  # fmt: skip
    with pytest.raises(CheckpointError, match=r"down_proj: .* should not be there"):
        load(tmp_path, make(), {**config, **skip})


@pytest.mark.parametrize(("value", "what"), [("nan", "holds NaN"), ("inf", "holds NaN or inf"), ("0", "is 0.0, which")])
def test_scales_that_are_no_numbers_are_refused(tmp_path, value, what):
    make, config = FORMS["modelopt nvfp4"]
    with pytest.raises(CheckpointError, match=f"weight_scale_2 {what}"):
        load(tmp_path, {**make(), "weight_scale_2": torch.tensor(float(value))}, config)


def test_quantized_tensors_without_a_configuration_are_refused(tmp_path):
    make, _ = FORMS["fp8 block"]
    save_file({f"{NAME}.{k}": v for k, v in make().items()}, tmp_path / "model.safetensors")
    assert "look quantized" in str(recognize(tmp_path))


def test_expert_tensors_are_a_problem_of_their_own(tmp_path):
    make, config = FORMS["fp8 block"]
    experts = {"model.layers.0.experts.gate_up_proj": torch.randn(2, 128, 128).to(torch.float8_e4m3fn)}
    save_file({**{f"{NAME}.{k}": v for k, v in make().items()}, **experts}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    checkpoint = Checkpoint.open(tmp_path)
    layers = stored_layers(checkpoint, recognize(checkpoint))
    assert layers[NAME].problem is None
    assert "experts" in layers["model.layers.0.experts"].problem
