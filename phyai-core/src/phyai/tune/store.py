"""The store: one JSON file per device, safe for many processes.

Writers take a lock, read what is there, add theirs, and put a complete new file in the old one's place; readers take no
lock and see the old file or the new one. A process that is killed, or a disk that is full, leaves the old one. Every
measurement is kept, up to :data:`MAX_HISTORY` of each kind of call; merging is a union, so its order does not matter.

The file lies in ``PHYAI_KERNEL_TUNE_DIR``, else in ``$XDG_CACHE_HOME/phyai/tune`` (``~/.cache/phyai/tune``).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from phyai.environment import Device
from phyai.files.replacing import replacing
from phyai.tune.record import Measurement, TuneError

SCHEMA = "phyai.tune/v1"
DIRECTORY_VARIABLE = "PHYAI_KERNEL_TUNE_DIR"

#: A larger file is not read.
MAX_BYTES = 64 << 20
#: Measurements kept of one kind of call; older ones go.
MAX_HISTORY = 16
#: Seconds to wait for another process that is writing.
LOCK_TIMEOUT = 30.0


def default_directory(environ: Mapping[str, str]) -> Path:
    """Where stores lie."""
    named = environ.get(DIRECTORY_VARIABLE)
    if named:
        return Path(named).expanduser()
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "phyai" / "tune"


def file_name(device: Device) -> str:
    """The file's name for a device.

    >>> file_name(Device("cuda", "nvidia", "sm90", "NVIDIA H200")), file_name(Device("cpu", name="x86_64"))
    ('nvidia-h200-sm90.json', 'cpu-x86_64.json')
    """
    parts = (device.name, device.arch) if device.type != "cpu" else ("cpu", device.name)
    words = "-".join(part for part in parts if part) or device.type
    return re.sub(r"[^a-z0-9_]+", "-", words.lower()).strip("-") + ".json"


def merge(*groups: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Every measurement of all groups, each once, the newest :data:`MAX_HISTORY` of a kind of call."""
    by_key: dict[str, dict[tuple[str, str], Measurement]] = {}
    for group in groups:
        for measurement in group:
            by_key.setdefault(measurement.key, {})[measurement.order()] = measurement
    merged: list[Measurement] = []
    for key in sorted(by_key):
        held = by_key[key]
        merged += [held[order] for order in sorted(held)[-MAX_HISTORY:]]
    return tuple(merged)


@attrs.frozen
class Contents:
    """What a store holds. ``problem`` says why its file could not be read."""

    measurements: tuple[Measurement, ...] = ()
    problem: str | None = None

    def of(self, key: str) -> tuple[Measurement, ...]:
        """The measurements of one kind of call, oldest first."""
        return tuple(m for m in self.measurements if m.key == key)


@attrs.frozen
class Store:
    """The measurements of one device. Nothing is read or made before a method is called."""

    path: Path

    @classmethod
    def of(cls, device: Device, environ: Mapping[str, str]) -> Store:
        return cls(default_directory(environ) / file_name(device))

    def read(self) -> Contents:
        """What the file holds; nothing where there is none. A corrupt file is a ``problem``, and stays where it is.

        Raises:
            TuneError: a newer PhyAI wrote the file, or it cannot be opened.
        """
        try:
            data = self._bytes()
        except FileNotFoundError:
            return Contents()
        except OSError as error:
            raise TuneError(f"the tuning store {self.path} cannot be read: {error.strerror}") from None
        try:
            return Contents(merge(_decoded(data)))
        except _Corrupt as error:
            return Contents(problem=f"the tuning store {self.path} is corrupt ({error})")

    def add(self, measurements: Iterable[Measurement]) -> Contents:
        """Merge ``measurements`` into the file, which other processes may be writing to as well.

        A corrupt file is set aside under another name; ``problem`` says so.

        Raises:
            TuneError: the file cannot be written. It is then as it was.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path.with_name(f"{self.path.name}.lock")):
                before = self.read()
                problem = self._set_aside(before.problem) if before.problem else None
                merged = merge(before.measurements, measurements)
                if merged != before.measurements:
                    with replacing(self.path) as file:
                        file.write(_encoded(merged))
                return Contents(merged, problem)
        except OSError as error:
            raise TuneError(
                f"the tuning store {self.path} cannot be written: {error.strerror or error}; nothing in it was "
                f"changed. {DIRECTORY_VARIABLE} names another directory"
            ) from None

    def _bytes(self) -> bytes:
        with self.path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)

    def _set_aside(self, problem: str) -> str:
        aside = self.path.with_name(f"{self.path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        os.replace(self.path, aside)
        return f"{problem}; it was set aside as {aside.name}, and a new one begun"


class _Corrupt(ValueError):
    """What is wrong with a file."""


def _encoded(measurements: Iterable[Measurement]) -> bytes:
    """The file: one measurement a line, so that versions can be compared."""
    head = json.dumps(SCHEMA)
    lines = ",\n".join(json.dumps(m.to_json(), ensure_ascii=False) for m in measurements)
    return f'{{"schema": {head}, "measurements": [\n{lines}\n]}}\n'.encode()


def _decoded(data: bytes) -> list[Measurement]:
    if len(data) > MAX_BYTES:
        raise _Corrupt(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        document: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Corrupt(f"no JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
        raise _Corrupt("it names no schema")
    schema = document["schema"]
    if schema != SCHEMA:
        if schema.startswith("phyai.tune/"):
            raise TuneError(f"the tuning store has the schema {schema}; this PhyAI reads {SCHEMA}")
        raise _Corrupt(f"its schema is {schema!r:.40}")
    entries = document.get("measurements")
    if not isinstance(entries, list):
        raise _Corrupt("it has no list of measurements")
    try:
        return [Measurement.from_json(entry) for entry in entries]
    except TuneError as error:
        raise _Corrupt(str(error)) from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a store. It goes when its holder dies, however it dies.

    Raises:
        TuneError: another process has held it for too long.
        OSError: the lock's file cannot be made.
    """
    try:
        import fcntl
    except ImportError:
        raise TuneError("tuning stores are written on systems with POSIX file locks only") from None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TuneError(f"another process has held {path} for {LOCK_TIMEOUT:g} s") from None
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)
