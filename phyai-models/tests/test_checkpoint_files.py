"""Reading safetensors checkpoints: what is there, and every way in which it can be damaged."""

import contextlib
import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.errors import CheckpointError
from phyai_models.weights import Checkpoint, TensorSpec, WeightSource
from phyai_models.weights.safetensors_file import DTYPES, read_all, read_header
from safetensors.torch import load_file, save_file


def write(path, header, data=b""):
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(body)) + body + data)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def shards(directory, weight_map, **files):
    directory.mkdir(exist_ok=True)
    for name, tensors in files.items():
        save_file(tensors, directory / f"{name}.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=3)), max_size=5),
    st.integers(0),
)
def test_what_safetensors_writes_is_read_back(tmp_path_factory, specs, seed):
    path = tmp_path_factory.mktemp("round") / "model.safetensors"
    generator = torch.Generator().manual_seed(seed % 2**32)
    tensors = {}
    for i, (name, shape) in enumerate(specs):
        dtype = DTYPES[name]
        raw = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
        tensors[f"t{i}"] = raw.view(dtype).reshape(shape)
    save_file(tensors, path)
    got, want = read_all(path), load_file(path)
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == want[name].dtype
        assert got[name].shape == want[name].shape
        assert torch.equal(got[name].reshape(-1).view(torch.uint8), want[name].reshape(-1).view(torch.uint8))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 300))
def test_no_bytes_escape_as_another_error(tmp_path_factory, body, length):
    path = tmp_path_factory.mktemp("fuzz") / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + body)
    with contextlib.suppress(CheckpointError):
        read_all(path)


@pytest.mark.parametrize("kept", [0, 4, 8, 50, -1])
def test_a_truncated_file_is_refused(tmp_path, kept):
    save_file({"a": torch.ones(100)}, tmp_path / "model.safetensors")
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:kept])
    with pytest.raises(CheckpointError, match="truncated") as refusal:
        Checkpoint.open(tmp_path)
    assert "JSON" not in str(refusal.value)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry()}, b"\0" * 9, "belong to no tensor"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, b"\0" * 12, "overlap"),
        ({"a": entry(offsets=(8, 16))}, b"\0" * 16, "hole"),
        ({"a": entry(shape=(3,))}, b"\0" * 8, "should take 12 bytes"),
        ({"a": entry(dtype="Q7")}, b"\0" * 8, "'Q7'"),
        ({"a": entry(shape=(-2,))}, b"\0" * 8, "malformed"),
        ({"a": entry(shape=(2.0,))}, b"\0" * 8, "malformed"),
        ({"a": {"dtype": "F32"}}, b"", "malformed"),
        ({"a": 7}, b"", "malformed"),
        ([1], b"", "not a JSON object"),
        (b"{not json", b"", "not valid JSON"),
        (b"[" * 100_000, b"", "not valid JSON"),
    ],
)
def test_a_contradictory_header_is_refused(tmp_path, header, data, message):
    with pytest.raises(CheckpointError, match=message):
        read_header(write(tmp_path / "model.safetensors", header, data))


def test_a_header_that_claims_to_be_huge_is_refused_unread(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(CheckpointError, match="truncated or not a safetensors file"):
        read_header(path)


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
    with pytest.raises(CheckpointError, match="outside"):
        Checkpoint.open(directory)


def test_an_index_that_disagrees_with_its_shards_lists_everything(tmp_path):
    directory = shards(
        tmp_path, {"a": "one.safetensors", "c": "one.safetensors", "b": "one.safetensors"},
        one={"a": torch.ones(1), "x": torch.ones(1)},
    )  # fmt: skip
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(directory)
    for part in ("c should be in one.safetensors", "b should be in one.safetensors", "x is in one.safetensors"):
        assert part in str(caught.value)


def test_a_missing_shard_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"two\.safetensors cannot be read"):
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
