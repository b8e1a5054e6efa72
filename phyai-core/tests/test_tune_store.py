"""The store: merging, several processes at once, and files that cannot be read or written."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.environment import Device
from phyai.tune import Measurement, Store, TuneError
from phyai.tune.record import Result
from phyai.tune.store import MAX_HISTORY, SCHEMA, default_directory, file_name, merge
from tune_world import measurement

measurements = st.builds(
    lambda key, when, time: measurement(key, when, a_x=time),
    st.sampled_from("abc"),
    st.integers(0, 30),
    st.sampled_from([1e-6, 2e-6]),
)
groups = st.lists(measurements, max_size=25)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "deep" / "gpu.json")


# Merging


@given(groups, groups, groups)
@settings(max_examples=60, deadline=None)
def test_merging_is_commutative_associative_and_idempotent(a, b, c):
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(a, a) == merge(a)


@given(groups)
@settings(max_examples=60, deadline=None)
def test_merging_keeps_the_newest_of_each_key(group):
    for key in {m.key for m in group}:
        distinct = sorted({m.order() for m in group if m.key == key})
        kept = [m.order() for m in merge(group) if m.key == key]
        assert kept == distinct[-MAX_HISTORY:]


@given(groups)
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read_back(group):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "s.json")
        store.add(group)
        assert store.read().measurements == merge(group)


def test_a_measurement_survives_json_with_all_its_timings():
    one = attrs.evolve(
        measurement("k"),
        facts={"role": None, "attrs.eps": 1e-6, "attrs.causal": True, "model.tags": frozenset({"a", "b"})},
        results={"a.x": Result((1e-6, 2e-6), stopped=True, source="1 ab"), "b.x": Result(problem="gave NaN")},
    )
    assert Measurement.from_json(json.loads(json.dumps(one.to_json()))) == one


# Where it lies


def test_the_directory_is_the_variables_else_the_cache():
    assert default_directory({"PHYAI_KERNEL_TUNE_DIR": "/t", "XDG_CACHE_HOME": "/c"}) == Path("/t")
    assert default_directory({"XDG_CACHE_HOME": "/c"}) == Path("/c/phyai/tune")
    assert default_directory({}) == Path("~/.cache/phyai/tune").expanduser()


def test_devices_have_files_of_their_own_and_names_cannot_leave_the_directory():
    assert file_name(Device("cuda", name="NVIDIA H200", arch="sm90")) == "nvidia-h200-sm90.json"
    assert "/" not in file_name(Device("cuda", name="../../etc/passwd"))


def test_a_store_that_is_not_there_is_empty(store):
    assert store.read().measurements == ()
    assert not store.path.parent.exists()


# Several processes

WRITER = """
import sys
sys.path[:0] = {tests!r}
from pathlib import Path
from phyai.tune import Store
from tune_world import measurement
store, who = Store(Path({path!r})), sys.argv[1]
print("ready", flush=True)
sys.stdin.readline()
for n in range({count}):
    store.add([measurement(f"{{who}}{{n}}", n)])
"""


def writer(store, who, count=40):
    code = textwrap.dedent(WRITER).format(tests=[str(Path(__file__).parent)], path=str(store.path), count=count)
    process = subprocess.Popen(
        [sys.executable, "-c", code, who], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_two_processes_that_tune_at_once_lose_nothing(store):
    both = [writer(store, who) for who in "ab"]
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.wait(60) for process in both] == [0, 0]
    assert {m.key for m in store.read().measurements} == {f"{who}{n}" for who in "ab" for n in range(40)}


def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_file_and_no_lock(store):
    for _ in range(3):
        process = writer(store, "k", count=10_000)
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(0.25)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        before = store.read()
        assert before.problem is None
        assert before.measurements
        assert store.add([measurement("mine", 1)]).of("mine")


def test_whoever_waits_too_long_for_the_lock_is_told(store, monkeypatch):
    import fcntl

    store.add([measurement()])
    monkeypatch.setattr("phyai.tune.store.LOCK_TIMEOUT", 0.05)
    with open(f"{store.path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TuneError, match=r"another process has held .*gpu\.json\.lock"):
            store.add([measurement("new")])


# Files that cannot be written


def test_a_full_disk_is_said_and_leaves_the_store_as_it_was(store, monkeypatch):
    store.add([measurement("old")])
    before = store.path.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TuneError, match=r"gpu\.json cannot be written: No space left on device; nothing in it was"):
            store.add([measurement("new")])
    assert store.path.read_bytes() == before
    assert sorted(p.name for p in store.path.parent.iterdir()) == ["gpu.json", "gpu.json.lock"]


def test_a_disk_that_fills_up_in_the_middle_leaves_the_store_as_it_was(tmp_path):
    # a real short write: the process may not write files beyond so many bytes
    code = f"""
    import resource, signal, sys
    sys.path[:0] = [{str(Path(__file__).parent)!r}]
    from pathlib import Path
    from phyai.tune import Store, TuneError
    from tune_world import measurement
    store = Store(Path({str(tmp_path / "s.json")!r}))
    store.add([measurement("old")])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
    try:
        store.add([measurement(f"new{{n}}") for n in range(50)])
    except TuneError as error:
        print(error)
    print([m.key for m in store.read().measurements], sorted(p.name for p in store.path.parent.iterdir()))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    said, left = done.stdout.splitlines()
    assert "cannot be written: File too large" in said
    assert left == "['old'] ['s.json', 's.json.lock']"


def test_a_read_only_directory_is_said(store):
    store.add([measurement("old")])
    folder = store.path.parent
    folder.chmod(0o555)
    (folder / "gpu.json.lock").unlink()
    parents = [
        p for p in folder.parents if p.owner() == folder.owner() and p != Path("/") and str(p).startswith("/tmp")
    ]
    modes = [(p, p.stat().st_mode) for p in parents]
    if os.geteuid() == 0:  # whom no mode stops
        for parent in parents:
            parent.chmod(0o755)
        os.seteuid(65534)
    try:
        with pytest.raises(TuneError, match=r"cannot be written: Permission denied.*PHYAI_KERNEL_TUNE_DIR"):
            store.add([measurement("new")])
        assert [m.key for m in store.read().measurements] == ["old"]
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        folder.chmod(0o755)
        for parent, mode in modes:
            parent.chmod(mode)


# Files that cannot be read


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"schema": "phyai.tune/v1", "measur', "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
        (b"[]", "names no schema"),
        (b'{"schema": "else", "measurements": []}', "its schema is 'else'"),
        (b'{"schema": "phyai.tune/v1"}', "no list of measurements"),
        (b'{"schema": "phyai.tune/v1", "measurements": [{"key": 1}]}', "no measurement can be read"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_a_corrupt_file_is_set_aside_and_said(store, content, words):
    store.path.parent.mkdir(parents=True)
    store.path.write_bytes(content)
    read = store.read()
    assert words in read.problem
    assert read.measurements == ()
    assert store.path.read_bytes() == content  # reading changes nothing

    added = store.add([measurement("new")])
    assert words in added.problem
    assert "set aside as gpu.json.corrupt-" in added.problem
    (aside,) = store.path.parent.glob("*.corrupt-*")
    assert aside.read_bytes() == content
    assert [m.key for m in store.read().measurements] == ["new"]


def test_timings_that_are_no_positive_numbers_make_a_file_corrupt(store):
    store.add([measurement()])
    for bad in ("0.0", "-1e-6", "NaN", "Infinity", '"x"'):
        text = store.path.read_text().replace("1e-06", bad, 1)
        broken = Store(store.path.with_name(f"bad{bad[0]}.json"))
        broken.path.write_text(text)
        assert "corrupt" in broken.read().problem


def test_the_file_of_a_newer_phyai_is_refused_and_stays(store):
    store.path.parent.mkdir(parents=True)
    store.path.write_text('{"schema": "phyai.tune/v9", "measurements": []}')
    for use in (store.read, lambda: store.add([measurement()])):
        with pytest.raises(TuneError, match=f"schema phyai.tune/v9; this PhyAI reads {SCHEMA}"):
            use()
    assert "v9" in store.path.read_text()


def test_a_file_without_end_is_not_read(store, monkeypatch):
    monkeypatch.setattr("phyai.tune.store.MAX_BYTES", 1000)
    store.path.parent.mkdir(parents=True)
    store.path.write_bytes(b" " * 1001)
    assert "larger than" in store.read().problem
