"""Reading headers and JSON of untrusted checkpoints."""

import contextlib
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.errors import CheckpointError
from phyai.quant.checkpoint import Checkpoint, read_header


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
    "header",
    [
        b"not json",
        b"[]",
        b"[" * 100_000,
        {"w": {"dtype": "F32", "shape": [2]}},
        {"w": {"dtype": "F31", "shape": [2], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"w": None},
        {"__metadata__": {"a": 1}},
    ],
)
def test_headers_that_do_not_describe_their_file_are_refused(tmp_path, header):
    with pytest.raises(CheckpointError):
        read_header(safetensors(tmp_path / "model.safetensors", header, b"\0" * 8))


@pytest.mark.parametrize("content", [b"", b"1234567", struct.pack("<Q", 1 << 60), struct.pack("<Q", 100) + b"{}"])
def test_files_that_end_early_are_refused(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        read_header(path)


@given(st.binary(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(content)
    with contextlib.suppress(CheckpointError):
        read_header(path)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "..", "a/b.safetensors"])
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


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (ONE, 7, "truncated: its header describes"), (ONE, 9, "bytes of no tensor"),
        ({**ONE, "v": ONE["w"]}, 8, "overlap"), ({"w": {**ONE["w"], "data_offsets": [8, 16]}}, 16, "leave a hole"),
    ],
)  # fmt: skip
def test_bytes_that_are_not_exactly_the_tensors_are_refused(tmp_path, header, data, message):
    with pytest.raises(CheckpointError, match=message):
        read_header(safetensors(tmp_path / "model.safetensors", header, b"\0" * data))


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
