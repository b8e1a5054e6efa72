"""Files that appear whole or not at all."""

import os
import stat

import pytest
from phyai.files.replacing import replacing


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_nobody_sees_an_unfinished_file(tmp_path):
    target = tmp_path / "a"
    target.write_bytes(b"old")
    with replacing(target) as file:
        file.write(b"new")
        file.flush()
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_what_was_there_and_nothing_beside_it(tmp_path, error):
    target = tmp_path / "a"
    target.write_bytes(b"old")
    for name in "ab":
        with pytest.raises(error), replacing(tmp_path / name) as file:  # noqa: PT012 - the block is what is tested
            file.write(b"new")
            raise error
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_a_new_file_has_ordinary_permissions_and_a_replaced_one_keeps_its_own(tmp_path):
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "new") as file:
            file.write(b"x")
    finally:
        os.umask(before)
    (tmp_path / "old").touch(0o600)
    with replacing(tmp_path / "old") as file:
        file.write(b"x")
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in names(tmp_path)}
    assert modes == {"new": 0o640, "old": 0o600}


def test_writers_at_once_do_not_meet(tmp_path):
    with replacing(tmp_path / "a") as one, replacing(tmp_path / "a") as other:
        one.write(b"1" * 10)
        other.write(b"22")
    assert (tmp_path / "a").read_bytes() == b"1" * 10


@pytest.mark.parametrize("name", ["missing/a", ".", "folder"])
def test_what_cannot_be_a_file_is_an_os_error(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"missing|director|folder|busy"), replacing(tmp_path / name) as file:
        file.write(b"x")
    assert names(tmp_path) == ["folder"]
