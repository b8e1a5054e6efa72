"""Reading what untrusted checkpoint folders say about themselves."""

import json
import struct

import pytest
from phyai.errors import CheckpointError
from phyai.quant.checkpoint import Checkpoint


def safetensors(path, header, data=b""):
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(body)) + body + data)
    return path


ONE = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def test_headers_say_where_tensors_lie(tmp_path):
    path = safetensors(tmp_path / "model.safetensors", {**ONE, "__metadata__": {"a": "b"}}, struct.pack("<2f", 1.5, -2))
    checkpoint = Checkpoint.open(tmp_path)
    info = checkpoint.tensors["w"]
    assert (info.dtype, info.shape, info.nbytes, info.file) == ("F32", (2,), 8, path)
    assert checkpoint.metadata == {"a": "b"}
    assert checkpoint.read_small("w") == [1.5, -2]


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "..", ".", "", "a/b.safetensors", "..\\x", "C:\\x"]
)
def test_an_index_cannot_lead_outside_its_folder(tmp_path, name):
    inside = tmp_path / "checkpoint"
    inside.mkdir()
    safetensors(tmp_path / "outside.safetensors", ONE, b"\0" * 8)
    (inside / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(CheckpointError, match="not a file of this folder"):
        Checkpoint.open(inside)


def test_an_index_that_names_a_missing_file_is_refused(tmp_path):
    index = {"weight_map": {"w": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="missing"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize("weight_map", [None, [], {}, {"w": 7}, {"w": None}])
def test_an_index_that_maps_no_names_is_refused(tmp_path, weight_map):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="weight_map must map tensor names to file names"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"w": "a.safetensors", "v": "a.safetensors"}, "v is not in a.safetensors"),
        ({"w": "a.safetensors", "x": "b.safetensors"}, "u in b.safetensors is not indexed"),
        ({"w": "b.safetensors", "u": "a.safetensors"}, "w is in a.safetensors, not in b.safetensors"),
    ],
)
def test_an_index_that_disagrees_with_its_files_is_refused(tmp_path, weight_map, message):
    safetensors(tmp_path / "a.safetensors", ONE, b"\0" * 8)
    safetensors(tmp_path / "b.safetensors", {"u": ONE["w"]}, b"\0" * 8)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(tmp_path)


def test_one_tensor_in_two_files_is_refused(tmp_path):
    for name in ("a.safetensors", "b.safetensors"):
        safetensors(tmp_path / name, ONE, b"\0" * 8)
    with pytest.raises(CheckpointError, match=r"both a\.safetensors and b\.safetensors"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000])
def test_configurations_that_are_no_objects_are_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Checkpoint.open(tmp_path)


def test_nothing_there(tmp_path):
    with pytest.raises(CheckpointError, match="neither a folder nor a file"):
        Checkpoint.open(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="neither safetensors files nor config"):
        Checkpoint.open(tmp_path)
