"""Inspecting checkpoints: what the report says, and the command's exit status."""

import json

import pytest
from phyai.cli import main
from phyai.quant.inspection import inspect_checkpoint
from quant_cases import CHECKPOINTS, CONFIGS, INDEX, meta


@pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda p: p.name)
def test_reports_of_checkpoints_name_every_linear(folder):
    report = inspect_checkpoint(folder)
    assert (report["recognised"], report["quantized"], report["refused"]) == (True, True, None)
    quantized = {name for name, layer in report["layers"].items() if layer["scheme"]}
    assert quantized == set(meta(folder)["quantized_modules"])
    json.dumps(report)


def test_a_layer_says_where_its_tensors_are():
    folder = next(p for p in CHECKPOINTS if p.name == "mo_int4_awq")
    layer = inspect_checkpoint(folder)["layers"]["model.layers.0.mlp.down_proj"]
    assert (layer["scheme"], layer["shape"], layer["pre_scale"]) == ("w4a16_g128", [128, 256], True)
    assert layer["weight"]["dtype"] == "int4"
    assert layer["input"] is None
    assert layer["tensors"]["scale"] == {
        "name": "model.layers.0.mlp.down_proj.weight_scale",
        "dtype": "F32",
        "shape": [128, 2],
        "file": "model.safetensors",
    }


def test_inspecting_loads_no_tensor_library(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys; from phyai.quant.inspection import inspect_checkpoint as i; "
        f"assert i({str(CHECKPOINTS[0])!r})['recognised']; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("entry", INDEX, ids=lambda e: e["file"])
def test_the_command_exits_with_one_where_it_refuses(entry, capsys):
    status = main(["inspect", str(CONFIGS / entry["file"]), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert status == (0 if report["recognised"] else 1)
    assert (report["refused"] is None) == report["recognised"]


def test_a_broken_layer_refuses_the_checkpoint(tmp_path, capsys):
    header = {"a.weight": {"dtype": "F8_E4M3", "shape": [2, 2], "data_offsets": [0, 4]}}
    body = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(body).to_bytes(8, "little") + body + b"\0" * 4)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    assert main(["inspect", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "a: weight_scale_inv or weight_scale is missing" in out


def test_a_missing_folder_is_refused(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "absent"), "--json"]) == 1
    assert "neither a folder nor a file" in json.loads(capsys.readouterr().out)["refused"]
