"""Reading checkpoints tensor by tensor, and what of them a model cannot be given."""

import json

import pytest
import torch
from phyai.errors import CheckpointError
from phyai_models.weights import Checkpoint, TensorSpec, WeightSource
from safetensors.torch import save_file


def shards(directory, weight_map, **files):
    directory.mkdir(exist_ok=True)
    for name, tensors in files.items():
        save_file(tensors, directory / f"{name}.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def test_shards_are_joined(tmp_path):
    directory = shards(
        tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}, one={"a": torch.ones(2)}, two={"b": torch.zeros(3)}
    )
    checkpoint = Checkpoint.open(directory)
    assert set(checkpoint.tensors) == {"a", "b"}
    assert torch.equal(checkpoint.read("a"), torch.ones(2))


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/../../x", "..\\x", "C:\\x", "", 7, None])
def test_an_index_that_points_outside_is_refused(tmp_path, name):
    directory = tmp_path / "in"
    directory.mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match=r"which is not a file of this folder|must map tensor names"):
        Checkpoint.open(directory)


def test_an_index_that_disagrees_with_its_shards_lists_everything(tmp_path):
    directory = shards(
        tmp_path, {"a": "one.safetensors", "c": "one.safetensors", "b": "one.safetensors"},
        one={"a": torch.ones(1), "x": torch.ones(1)},
    )  # fmt: skip
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(directory)
    for part in ("c is not in one.safetensors", "b is not in one.safetensors", "x in one.safetensors is not indexed"):
        assert part in str(caught.value)


def test_a_missing_shard_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"'two\.safetensors', which is missing"):
        Checkpoint.open(shards(tmp_path, {"a": "two.safetensors"}))


@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": []}', '{"weight_map": {}}', "\x00"])
def test_a_malformed_index_is_refused(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match="index"):
        Checkpoint.open(tmp_path)


def test_no_weights_at_all(tmp_path):
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        Checkpoint.open(tmp_path)
    with pytest.raises(CheckpointError, match="not a directory"):
        Checkpoint.open(tmp_path / "nowhere")


def source(tmp_path, tensors, **options):
    save_file(tensors, tmp_path / "model.safetensors")
    return WeightSource(Checkpoint.open(tmp_path), **options)


def test_every_misfit_is_listed_with_the_nearest_name(tmp_path):
    held = {
        "layers.0.q_proj.weight": torch.ones(2, 2), "layers.0.k_porj.weight": torch.ones(2, 2),
        "layers.0.scale": torch.ones(2, dtype=torch.int8), "extra": torch.ones(1),
    }  # fmt: skip
    specs = [
        TensorSpec("layers.0.q_proj.weight", (4, 2)), TensorSpec("layers.0.k_proj.weight", (2, 2)),
        TensorSpec("layers.0.scale", (2,)), TensorSpec("layers.0.norm", (2,)),
    ]  # fmt: skip
    with pytest.raises(CheckpointError) as caught:
        source(tmp_path, held).require(specs)
    message = str(caught.value)
    assert "(6 problems)" in message
    assert "layers.0.q_proj.weight has shape [2, 2]; the model asks for [4, 2]" in message
    assert "layers.0.k_proj.weight is missing; the nearest name is layers.0.k_porj.weight" in message
    assert "layers.0.k_porj.weight is not a tensor of this model; the nearest name is layers.0.k_proj.weight" in message
    assert "layers.0.scale is stored as int8" in message
    assert "layers.0.norm is missing" in message
    assert "extra is not a tensor of this model" in message


def test_a_tensor_stored_twice_is_ambiguous(tmp_path):
    both = source(tmp_path, {"a": torch.ones(1), "model.a": torch.ones(1)}, prefixes=("", "model."))
    with pytest.raises(CheckpointError, match=r"a and model\.a are the same tensor"):
        both.require([TensorSpec("a", (1,))])


def test_ignored_tensors_are_no_surplus(tmp_path):
    source(tmp_path, {"a": torch.ones(1), "b.x": torch.ones(1)}, ignored={"b.*": "unused"}).require(
        [TensorSpec("a", (1,))]
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_taking_converts(tmp_path, dtype):
    values = torch.tensor([1.5, -2.0, 0.25])
    out = torch.empty(5, dtype=dtype)
    source(tmp_path, {"a": values}).take("a", out[1:4])
    assert torch.equal(out[1:4], values.to(dtype))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_that_are_not_finite_are_named(tmp_path, bad, dtype):
    values = torch.ones(1000, dtype=dtype)
    values[531] = bad
    weights = source(tmp_path, {"a": values, "b": torch.ones(2)})
    for name, n in (("a", 1000), ("b", 2)):
        weights.take(name, torch.empty(n))
    with pytest.raises(CheckpointError, match="1 tensors") as caught:
        weights.check_finite()
    assert caught.value.args[0].endswith("  a")


def test_a_file_that_shrinks_after_it_was_opened(tmp_path):
    weights = source(tmp_path, {"a": torch.ones(1000)})
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="changed since"):
        weights.take("a", torch.empty(1000))
