"""Files and folders that appear whole or not at all."""

import errno
import os
import stat
import subprocess
import sys

import pytest
from phyai.files.replacing import filling, replacing


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


# Folders


def test_a_folder_appears_whole(tmp_path):
    with filling(tmp_path / "above" / "a") as folder:
        (folder / "b").write_text("new")
        assert not (tmp_path / "above" / "a").exists()
    assert (tmp_path / "above" / "a" / "b").read_text() == "new"
    assert names(tmp_path / "above") == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_nothing_of_a_folder(tmp_path, error):
    with pytest.raises(error), filling(tmp_path / "a") as folder:  # noqa: PT012 - the block is what is tested
        (folder / "b").write_text("new")
        raise error
    assert names(tmp_path) == []


def test_a_folder_that_came_meanwhile_stays(tmp_path):
    with pytest.raises(FileExistsError, match="another writer made it") as raised, filling(tmp_path / "a"):  # noqa: PT012 - as above
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "theirs").touch()
    assert raised.value.filename == str(tmp_path / "a")
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["theirs"]


# What killed processes leave

WRITER = """
import sys, time
from pathlib import Path
from phyai.files.replacing import filling, replacing
with {"file": replacing, "folder": filling}[sys.argv[1]](Path(sys.argv[2])) as made:
    print("ready", flush=True)
    time.sleep(60)
"""
WRITE = {"file": replacing, "folder": filling}


@pytest.fixture
def writer():
    """Starts a process that is in the middle of writing a file or a folder."""
    started = []

    def start(kind, target):
        process = subprocess.Popen([sys.executable, "-c", WRITER, kind, target], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_next_writer_removes_what_a_killed_one_left(kind, tmp_path, writer):
    process = writer(kind, tmp_path / "a")
    process.kill()
    process.wait()
    (left,) = names(tmp_path)
    assert left.startswith(".a.")
    assert left.endswith(".partial")
    with WRITE[kind](tmp_path / "a"):
        pass
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_another_process_is_writing_stays(kind, tmp_path, writer):
    process = writer(kind, tmp_path / "a")
    during = names(tmp_path)
    with WRITE[kind](tmp_path / "a"):
        pass
    assert names(tmp_path) == sorted([*during, "a"])
    assert process.poll() is None


@pytest.mark.parametrize(
    "name", [".a.0123456.partial", ".b.01234567.partial", "a.01234567.partial", ".a.01234567.part"]
)
def test_what_only_looks_alike_stays(name, tmp_path):
    (tmp_path / name).touch()
    with replacing(tmp_path / "a") as file:
        file.write(b"x")
    assert names(tmp_path) == sorted(["a", name])


def test_a_link_that_looks_like_a_leftover_is_not_followed(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "kept").touch()
    (tmp_path / ".a.01234567.partial").symlink_to(tmp_path / "theirs")
    with replacing(tmp_path / "a") as file:
        file.write(b"x")
    assert names(tmp_path / "theirs") == ["kept"]


# What is said


@pytest.mark.parametrize("write", [replacing, filling])
def test_what_cannot_be_made_is_named_as_the_caller_named_it(write, tmp_path, monkeypatch):
    def read_only(path, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))

    monkeypatch.setattr("os.open", read_only)
    monkeypatch.setattr("pathlib.Path.mkdir", read_only)
    with pytest.raises(OSError, match="Read-only file system") as raised, write(tmp_path / "a"):
        pass
    assert (raised.value.errno, raised.value.filename) == (errno.EROFS, str(tmp_path / "a"))


def test_a_full_disk_is_said_of_the_file_that_is_written(tmp_path):
    with pytest.raises(OSError, match="No space left") as raised, replacing(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert raised.value.filename == str(tmp_path / "a")
    assert names(tmp_path) == []


def test_what_is_inside_an_unfinished_folder_is_said_of_the_folder(tmp_path):
    with pytest.raises(OSError, match="No such file") as raised, filling(tmp_path / "a") as folder:
        (folder / "no" / "b").write_text("x")
    assert raised.value.filename == str(tmp_path / "a")


def test_an_error_about_another_file_stays_about_it(tmp_path):
    with pytest.raises(FileNotFoundError) as raised, replacing(tmp_path / "a"):
        (tmp_path / "other").read_bytes()
    assert raised.value.filename == str(tmp_path / "other")
