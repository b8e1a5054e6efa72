"""Writing a quantized checkpoint: what is loaded from it is what quantizing at load gives."""

import json

import pytest
import torch
from phyai.errors import CheckpointError
from phyai.policy import parse_policy
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.realize import dequantize
from phyai_models import load_linears
from phyai_models.quantized.writing import write_quantized
from pi_cases import copy_case, random_batch, random_checkpoint, run
from safetensors.torch import load_file, save_file

PROJECTIONS = 'any_of: [{glob: "*.language_model.*_proj"}, {glob: "*.expert.*_proj"}]'


def policy(scheme, match=PROJECTIONS, method="rtn", **rule):
    rule = {"match": "MATCH", "scheme": scheme, **rule}
    text = json.dumps({"schema": "phyai.kernel/v1", "quantization": {"method": method, "rules": [rule]}})
    return parse_policy(text.replace('"MATCH"', "{" + match + "}")).policy


def small(folder, dtype=torch.bfloat16, n=24, k=64, **config):
    """A checkpoint of no model that is known: two linear layers, an embedding and a norm."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "a.up_proj.weight": torch.randn(n, k, generator=generator),
        "a.up_proj.bias": torch.randn(n, generator=generator),
        "a.head.weight": torch.randn(8, k, generator=generator), "embed_tokens.weight": torch.randn(10, k),
        "norm.weight": torch.ones(k),
    }  # fmt: skip
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "small", **config}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def bits(tensor):
    return tensor.dtype, tensor.reshape(-1).view(torch.uint8).tolist()


def same(one, other):
    """Whether two quantized weights have equal tensors, bit for bit."""
    ours, theirs = one.tensors(), other.tensors()
    return ours.keys() == theirs.keys() and all(bits(ours[name]) == bits(theirs[name]) for name in ours)


SCHEMES = [
    {"weight": {"dtype": "int4", "group_size": 32, "scale_dtype": "bf16"}},
    {"weight": {"dtype": "int4", "group_size": 16, "symmetric": False}},
    {"weight": {"dtype": "int3", "group_size": 64}, "input": {"dtype": "int8"}},
    {"weight": {"dtype": "int8"}, "input": {"dtype": "int8"}},
    {"weight": {"dtype": "int8", "granularity": "tensor", "symmetric": False}, "input": {"dtype": "int8"}},
    {"weight": {"dtype": "int8", "granularity": "channel", "symmetric": False}},
    {"weight": {"dtype": "int5", "granularity": "channel", "symmetric": False}},
    {"weight": {"dtype": "fp8_e4m3", "granularity": "tensor"}, "input": {"dtype": "fp8_e4m3"}},
    {"weight": {"dtype": "fp8_e4m3", "block_shape": [16, 16]}, "input": {"dtype": "fp8_e4m3", "group_size": 16}},
    {"weight": "mxfp4"},
    {"weight": "mxfp4", "input": "mxfp8"},
    {"weight": "mxfp8", "input": "mxfp8"},
    {"weight": "nvfp4"},
]


@pytest.mark.parametrize("method", ["rtn", "rtn_mse"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: json.dumps(s))
def test_what_is_loaded_is_what_quantizing_at_load_gives(scheme, method, tmp_path):
    source = small(tmp_path / "source")
    chosen = policy(scheme, 'name: ["up_proj"]', method=method)
    write_quantized(source, chosen, tmp_path / "out")
    loaded = load_linears(tmp_path / "out")["a.up_proj"]
    at_load = load_linears(source, policy=chosen)["a.up_proj"]
    assert loaded.scheme == at_load.scheme
    assert same(loaded.weight, at_load.weight)
    assert torch.equal(loaded.bias, at_load.bias)
    x = torch.randn(3, 64)
    assert torch.equal(loaded(x), at_load(x))


def test_everything_else_is_copied_as_it_is(tmp_path):
    source = small(tmp_path / "source", text_config={"x": 1})
    written = write_quantized(source, policy({"weight": "mxfp4"}, "name: up_proj"), tmp_path / "out")
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    for name in ("a.up_proj.bias", "a.head.weight", "embed_tokens.weight", "norm.weight"):
        assert torch.equal(before[name], after[name]), name
    assert "a.up_proj.weight" not in after
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.pop("quantization_config")["ignore"] == ["a.head"]
    assert config == {"model_type": "small", "text_config": {"x": 1}}
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert written.kept == ("a.head",)
    assert written.after == sum(t.nbytes for t in after.values())


@pytest.mark.parametrize("name", ["pi05_a", "pi0_a"])
@pytest.mark.parametrize(
    "scheme",
    [
        {"weight": {"dtype": "int4", "group_size": 16}},
        {"weight": {"dtype": "int8"}, "input": {"dtype": "int8"}},
        {"weight": {"dtype": "fp8_e4m3", "granularity": "tensor"}, "input": {"dtype": "fp8_e4m3"}},
    ],
    ids=["int4", "int8", "fp8"],
)
def test_a_pi_checkpoint_answers_the_same_either_way(name, scheme, tmp_path, catalog):
    source = copy_case(name, tmp_path / "source")
    chosen = policy(scheme)
    write_quantized(source, chosen, tmp_path / "out", catalog=catalog)
    batch = random_batch(source)
    loaded = run(tmp_path / "out", batch, catalog=catalog)["actions"]
    at_load = run(source, batch, policy=chosen, catalog=catalog)["actions"]
    assert torch.equal(loaded, at_load)
    assert not torch.equal(loaded, run(source, batch, catalog=catalog)["actions"])


def test_shards_keep_their_files(tmp_path, catalog):
    source = random_checkpoint(tmp_path / "source", "pi05", width=32)
    state = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    names = sorted(state)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, some in halves.items():
        save_file({n: state[n] for n in some}, source / file)
    index = {"weight_map": {n: file for file, some in halves.items() for n in some}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    chosen = policy({"weight": {"dtype": "int4", "group_size": 4}})
    written = write_quantized(source, chosen, tmp_path / "out", catalog=catalog)
    found = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(found["weight_map"].values()) == set(halves)
    assert found["metadata"]["total_size"] == written.after
    batch = random_batch(source)
    assert torch.equal(
        run(tmp_path / "out", batch, catalog=catalog)["actions"],
        run(source, batch, policy=chosen, catalog=catalog)["actions"],
    )


def test_a_folder_that_exists_is_not_overwritten(tmp_path):
    source = small(tmp_path / "source")
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="exists and is not overwritten"):
        write_quantized(source, policy({"weight": "mxfp4"}, "name: up_proj"), tmp_path / "out")


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path, monkeypatch):
    source = small(tmp_path / "source")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(CheckpointError, match=rf"above/out cannot be written: {tmp_path} is not writable"):
        write_quantized(source, policy({"weight": "mxfp4"}, "name: up_proj"), tmp_path / "above" / "out")


def test_a_failure_leaves_nothing_behind(tmp_path):
    source = small(tmp_path / "source")
    state = load_file(source / "model.safetensors")
    state["a.up_proj.weight"][3, 3] = torch.inf
    save_file(state, source / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"a\.up_proj\.weight: the weight holds an infinity"):
        write_quantized(source, policy({"weight": "mxfp4"}, "name: up_proj"), tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ({"weight": "uint4"}, "has no uint4"),
        ({"weight": {"dtype": "int4", "group_size": 16, "zero_point": "float"}}, "floating zero points"),
        ({"weight": {"dtype": "int4", "group_size": 48}}, "no multiple of the weight's group_size 48"),
        ({"weight": "nvfp4", "input": "nvfp4"}, "needs calibration data"),
        ({"weight": {"dtype": "fp4_e2m1", "group_size": 16}}, "stores fp4_e2m1 as"),
        ({"weight": "mxfp6_e3m2"}, "has no fp6_e3m2"),
        ({"weight": "int8", "output": {"dtype": "int8"}}, "no a quantized output|stores no"),
    ],
    ids=lambda v: v if isinstance(v, str) else json.dumps(v),
)
def test_what_cannot_be_expressed_is_refused_with_the_reason(scheme, words, tmp_path):
    source = small(tmp_path / "source")
    with pytest.raises(CheckpointError, match=rf"a\.up_proj: .*({words})"):
        write_quantized(source, policy(scheme, "name: up_proj"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_quantized_already_is_refused(tmp_path):
    source = small(tmp_path / "source")
    chosen = policy({"weight": "mxfp4"}, "name: up_proj")
    write_quantized(source, chosen, tmp_path / "once")
    with pytest.raises(CheckpointError, match=r"quantized already \(compressed-tensors\)"):
        write_quantized(tmp_path / "once", chosen, tmp_path / "twice")


def test_a_section_that_reaches_nothing_is_refused(tmp_path):
    source = small(tmp_path / "source")
    with pytest.raises(CheckpointError, match="no quantization rule reaches"):
        write_quantized(source, policy({"weight": "mxfp4"}, "name: upproj"), tmp_path / "out")


def test_a_quantized_layer_of_another_shape_is_refused(tmp_path, catalog):
    source = random_checkpoint(tmp_path / "source", "pi05", width=32)
    write_quantized(source, policy({"weight": {"dtype": "int8"}}), tmp_path / "out", catalog=catalog)
    arch = json.loads((tmp_path / "out" / "arch.json").read_text())
    arch["language_model"]["mlp_dim"] += 4
    (tmp_path / "out" / "arch.json").write_text(json.dumps(arch))
    with pytest.raises(CheckpointError, match=r"gate_proj has a weight of shape \[68, 32\]; the model asks for \[72"):
        run(tmp_path / "out", random_batch(source), catalog=catalog)


def test_a_policy_that_asks_for_another_form_than_is_stored_is_refused(tmp_path, catalog):
    source = random_checkpoint(tmp_path / "source", "pi05", width=32)
    write_quantized(source, policy({"weight": {"dtype": "int8"}}), tmp_path / "out", catalog=catalog)
    with pytest.raises(CheckpointError, match="stored as w8a16_channel but the policy asks for w4a16_channel"):
        run(tmp_path / "out", random_batch(source), catalog=catalog, policy=policy({"weight": {"dtype": "int4"}}))


def test_the_stored_numbers_are_near_the_original(tmp_path):
    source = small(tmp_path / "source")
    write_quantized(source, policy({"weight": "int8"}, "name: up_proj"), tmp_path / "out")
    original = load_file(source / "model.safetensors")["a.up_proj.weight"].float()
    step = original.abs().amax(1, keepdim=True) / 127.5
    weight = load_linears(tmp_path / "out")["a.up_proj"].weight
    assert ((dequantize(weight) - original).abs() <= 0.501 * step).all()


def test_every_tensor_lies_on_its_own_alignment(tmp_path):
    source = small(tmp_path / "source", n=23, k=96)
    write_quantized(source, policy({"weight": {"dtype": "int4", "group_size": 32}}, "name: up_proj"), tmp_path / "out")
    sizes = {"I64": 8, "I32": 4, "F32": 4, "BF16": 2, "U8": 1}
    for info in Checkpoint.open(tmp_path / "out").tensors.values():
        assert info.begin % sizes[info.dtype] == 0, info.name
