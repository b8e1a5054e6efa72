"""Any checkpoint's linear layers, loaded by name and called: outputs as the writing library's own."""

import json
from pathlib import Path

import pytest
import torch
from phyai.cli import main
from phyai.errors import CheckpointError
from phyai.policy import parse_policy
from phyai_models import load_linears
from safetensors.torch import load_file, save_file

DATA = Path(__file__).parents[2] / "phyai-core" / "tests" / "data" / "quant"
CHECKPOINTS = sorted(p.parent for p in DATA.glob("*/model.safetensors"))
WITH_OUTPUTS = [p for p in CHECKPOINTS if (p / "io.safetensors").is_file()]


@pytest.mark.parametrize("folder", WITH_OUTPUTS, ids=lambda p: p.name)
def test_outputs_are_the_librarys(folder, catalog):
    io = load_file(folder / "io.safetensors")
    names = [key.removesuffix(".x") for key in io if key.endswith(".x")]
    linears = load_linears(folder, names, catalog=catalog)
    for name in names:
        x, y = io[f"{name}.x"], io[f"{name}.y"]
        got = linears[name](x.float())
        assert got.dtype == torch.float32
        assert ((got - y).norm(dim=-1) <= 1e-5 * y.norm(dim=-1)).all(), name  # row by row
        low = linears[name](x)
        assert low.dtype == x.dtype
        assert ((low.float() - y).norm(dim=-1) <= 0.01 * y.norm(dim=-1)).all(), name


def test_layers_in_ordinary_precision_come_too(catalog):
    folder = DATA / "mo_fp8_excl"
    linears = load_linears(folder, catalog=catalog)
    head = linears["lm_head"]
    stored = load_file(folder / "model.safetensors")["lm_head.weight"]
    assert head.scheme is None
    assert torch.equal(head.dequantized_weight(), stored.float())
    x = torch.randn(2, 3, 128).to(torch.bfloat16)
    assert torch.allclose(head(x).float(), x.float() @ stored.float().T, rtol=2e-2, atol=2e-2)
    assert (head.out_features, head.in_features) == (32, 128)


def test_only_the_names_asked_for(catalog):
    name = "model.layers.1.self_attn.q_proj"
    assert list(load_linears(DATA / "ct_w8a16_channel", [name], catalog=catalog)) == [name]
    assert list(load_linears(DATA / "ct_w8a16_channel", name, catalog=catalog)) == [name]


def test_an_unknown_name_is_an_error_with_a_suggestion(catalog):
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.self_attn\.q_proj"):
        load_linears(DATA / "ct_w8a16_channel", ["model.layers.1.self_attn.q_prj"], catalog=catalog)


def test_a_folder_without_weights_is_an_error(tmp_path, catalog):
    (tmp_path / "config.json").write_bytes((DATA / "mo_fp8" / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match="holds no weights"):
        load_linears(tmp_path, catalog=catalog)


@pytest.mark.parametrize(
    ("case", "suffix"),
    [
        ("ct_w8a16_channel", "weight_scale"), ("hf_fp8_block", "weight_scale_inv"), ("hf_fp8_block", "weight"),
        ("ct_nvfp4a16", "weight_scale"), ("ct_mxfp4a16", "weight_scale"), ("awq_gemm_g128", "scales"),
        ("mo_int4_awq", "pre_quant_scale"),
    ],
)  # fmt: skip
def test_what_is_no_number_names_layer_and_tensor(tmp_path, catalog, case, suffix):
    name = "model.layers.0.mlp.down_proj"
    tensors = load_file(DATA / case / "model.safetensors")
    value = tensors[f"{name}.{suffix}"]
    value.view(-1)[:1].view(torch.uint8).fill_(0xFF)  # NaN in every form of float, and as an exponent
    save_file(tensors, tmp_path / "model.safetensors")
    for file in DATA.joinpath(case).glob("*config.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(CheckpointError, match=rf"{name}: {suffix} holds NaN"):
        load_linears(tmp_path, [name], catalog=catalog)


def test_a_refused_checkpoint_is_an_error(tmp_path, catalog):
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "w4afp8"}}))
    with pytest.raises(CheckpointError, match="w4afp8"):
        load_linears(tmp_path, catalog=catalog)


def test_a_layer_that_cannot_be_loaded_is_an_error_that_names_it(tmp_path, catalog):
    tensors = load_file(DATA / "mo_fp8" / "model.safetensors")
    del tensors["odd_proj.weight_scale"]
    save_file(tensors, tmp_path / "model.safetensors")
    for name in ("config.json", "hf_quant_config.json"):
        (tmp_path / name).write_bytes((DATA / "mo_fp8" / name).read_bytes())
    with pytest.raises(CheckpointError, match="odd_proj: weight_scale is missing"):
        load_linears(tmp_path, catalog=catalog)
    assert load_linears(tmp_path, ["lm_head"], catalog=catalog)


POLICY = """
schema: phyai.kernel/v1
quantization:
  rules:
    - match: {glob: "*_proj"}
      scheme: {weight: {dtype: int8, granularity: channel}, input: {dtype: int8}}
"""


def plain_checkpoint(folder):
    weights = {n: torch.randn(24, 64).to(torch.bfloat16) for n in ("a.q_proj", "a.head")}
    save_file({f"{n}.weight": w for n, w in weights.items()}, folder / "model.safetensors")
    return weights


def test_a_policy_quantizes_what_is_stored_in_ordinary_precision(tmp_path, catalog):
    weights = plain_checkpoint(tmp_path)
    linears = load_linears(tmp_path, policy=parse_policy(POLICY, catalog=catalog).policy, catalog=catalog)
    assert (linears["a.q_proj"].scheme.name, linears["a.head"].scheme) == ("w8a8_channel", None)
    w = weights["a.q_proj"].float()
    assert (linears["a.q_proj"].dequantized_weight() - w).norm() < 0.01 * w.norm()
    x = torch.randn(5, 64)
    assert (linears["a.q_proj"](x) - x @ w.T).norm() < 0.02 * (x @ w.T).norm()


def test_a_policy_does_not_requantize_what_is_quantized(catalog):
    with pytest.raises(CheckpointError, match="ordinary precision"):
        load_linears(DATA / "mo_fp8", policy=parse_policy(POLICY, catalog=catalog).policy, catalog=catalog)


def test_the_command_writes_every_linear_as_float32(tmp_path):
    folder, out = DATA / "gptq_v1_g128_sym", tmp_path / "weights.safetensors"
    assert main(["dequantize", str(folder), "--out", str(out)]) == 0
    written, expected = load_file(out), load_file(folder / "expected.safetensors")
    assert len(written) == 17
    assert {t.dtype for t in written.values()} == {torch.float32}
    rows = expected["odd_proj.rows"].long()
    assert torch.equal(written["odd_proj.weight"][rows], expected["odd_proj.weight"])
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("out", ["no/weights.safetensors", "."])
def test_the_command_says_where_it_cannot_write(tmp_path, capsys, out):
    assert main(["dequantize", str(DATA / "mo_fp8"), "--out", str(tmp_path / out)]) == 1
    assert f"{tmp_path / out} cannot be written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_command_overwrites_nothing(tmp_path, capsys):
    out = tmp_path / "weights.safetensors"
    out.write_bytes(b"somebody's")
    assert main(["dequantize", str(DATA / "mo_fp8"), "--out", str(out)]) == 1
    assert f"{out} exists and is not overwritten; give a new file, or remove it first" in capsys.readouterr().err
    assert out.read_bytes() == b"somebody's"


def test_the_command_leaves_nothing_behind_when_it_fails(tmp_path, capsys):
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out.safetensors"
    checkpoint.mkdir()
    save_file({"a.weight": torch.randn(4, 4).to(torch.float8_e4m3fn)}, checkpoint / "model.safetensors")
    assert main(["dequantize", str(checkpoint), "--out", str(out)]) == 1
    assert "no quantization configuration was found" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [checkpoint]
