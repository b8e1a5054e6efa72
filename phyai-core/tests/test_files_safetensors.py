"""Safetensors files: what is there, and every way in which one can be damaged."""

import contextlib
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.errors import CheckpointError
from phyai.files.safetensors_file import (
    DTYPE_BYTES,
    MAX_HEADER,
    header,
    read_all,
    read_header,
    read_tensor,
    torch_dtypes,
)


def write(path, head, data=b""):
    body = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(body)) + body + data)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


specs = st.lists(st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), st.lists(st.integers(0, 4), max_size=3)), max_size=5)


def drawn(specs, seed):
    torch = pytest.importorskip("torch", reason="reads tensors")
    generator = torch.Generator().manual_seed(seed)
    for i, (name, shape) in enumerate(specs):
        dtype = torch_dtypes()[name]
        raw = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
        yield f"t{i}", raw.view(dtype).reshape(shape)


def assert_same(got, want):
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape)
        assert raw_bytes(got[name]) == raw_bytes(tensor)


def raw_bytes(tensor):
    import torch

    return tensor.reshape(-1).view(torch.uint8).tolist()


@settings(max_examples=30, deadline=None)
@given(specs, st.integers(0, 2**32))
def test_what_safetensors_writes_is_read_back(tmp_path_factory, specs, seed):
    library = pytest.importorskip("safetensors.torch", reason="the format's own library writes the file")
    path = tmp_path_factory.mktemp("round") / "model.safetensors"
    tensors = dict(drawn(specs, seed))
    library.save_file(tensors, path)
    assert_same(read_all(path), library.load_file(path))


@settings(max_examples=30, deadline=None)
@given(specs, st.integers(0, 2**32))
def test_safetensors_reads_what_a_header_of_ours_says(tmp_path_factory, specs, seed):
    library = pytest.importorskip("safetensors.torch", reason="the format's own library reads the file")
    path = tmp_path_factory.mktemp("ours") / "model.safetensors"
    tensors = dict(drawn(specs, seed))
    path.write_bytes(
        header({f"t{i}": (dtype, tuple(shape)) for i, (dtype, shape) in enumerate(specs)})
        + b"".join(bytes(raw_bytes(tensor)) for tensor in tensors.values())
    )
    assert_same(library.load_file(path), tensors)


def test_a_header_says_where_tensors_lie(tmp_path):
    path = write(tmp_path / "a", {"w": entry(), "__metadata__": {"a": "b"}}, struct.pack("<2f", 1.5, -2))
    tensors, metadata = read_header(path)
    info = tensors["w"]
    assert (info.dtype, info.shape, info.nbytes, info.file) == ("F32", (2,), 8, path)
    assert path.read_bytes()[info.begin : info.end] == struct.pack("<2f", 1.5, -2)
    assert metadata == {"a": "b"}


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 300))
def test_no_bytes_escape_as_another_error(tmp_path_factory, body, length):
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(struct.pack("<Q", length) + body)
    with contextlib.suppress(CheckpointError):
        read_header(path)


@pytest.mark.parametrize("kept", [0, 4, 7, 8, 50, -1])
def test_a_truncated_file_is_refused(tmp_path, kept):
    path = write(tmp_path / "a", {"a": entry(shape=(100,), offsets=(0, 400))}, bytes(400))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="truncated") as refusal:
        read_header(path)
    assert "JSON" not in str(refusal.value)


@pytest.mark.parametrize(
    ("head", "data", "message"),
    [
        ({"a": entry()}, 7, "is truncated: its header describes"),
        ({"a": entry()}, 9, "belong to no tensor"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, 12, "overlap"),
        ({"a": entry(), "b": entry()}, 8, "overlap"),
        ({"a": entry(offsets=(8, 16))}, 16, "hole"),
        ({"a": entry(offsets=(8, 0))}, 8, "should take 8 bytes"),
        ({"a": entry(shape=(3,))}, 8, "should take 12 bytes"),
        ({"a": entry(shape=(4,), offsets=(0, 16))}, 8, "is truncated"),
        ({"a": entry(dtype="Q7")}, 8, "'Q7'"),
        ({"a": entry(dtype=["F32"])}, 8, "has dtype"),
        ({"a": entry(shape=(-2,))}, 8, "malformed"),
        ({"a": entry(shape=(2.0,))}, 8, "malformed"),
        ({"a": entry(shape=(True, 2))}, 8, "malformed"),
        ({"a": entry(shape=(0, 1 << 63), offsets=(0, 0))}, 0, "malformed"),
        ({"a": {"dtype": "F32"}}, 0, "malformed"),
        ({"a": 7}, 0, "malformed"),
        ({"a": None}, 0, "malformed"),
        ({"__metadata__": {"a": 1}}, 0, "__metadata__"),
        ([1], 0, "not a JSON object"),
        (b"{not json", 0, "not valid JSON"),
        (b"[" * 100_000, 0, "not valid JSON"),
    ],
)
def test_a_contradictory_header_is_refused(tmp_path, head, data, message):
    with pytest.raises(CheckpointError, match=message):
        read_header(write(tmp_path / "model.safetensors", head, bytes(data)))


def test_a_header_that_claims_to_be_huge_is_refused_unread(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(CheckpointError, match="truncated or not a safetensors file"):
        read_header(path)


def test_a_huge_header_is_refused_unread(tmp_path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", MAX_HEADER + 1))
        file.truncate(MAX_HEADER + 100)  # a hole: no disk is used
    with pytest.raises(CheckpointError, match="exceeds the format's 100000000"):
        read_header(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere cannot be read: No such file"):
        read_header(tmp_path / "nowhere")


def test_a_file_that_shrinks_after_it_was_opened(tmp_path):
    pytest.importorskip("torch", reason="reads tensors")
    path = write(tmp_path / "a", {"a": entry(shape=(100,), offsets=(0, 400))}, bytes(400))
    info = read_header(path)[0]["a"]
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CheckpointError, match="changed since"):
        read_tensor(info)
