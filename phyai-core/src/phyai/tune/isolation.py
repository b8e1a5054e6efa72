"""Measuring in another process, so that a candidate that crashes or hangs is recorded and skipped.

A kernel that loops forever on a GPU cannot be interrupted, and one that writes out of bounds spoils its process's CUDA
context; killing the process ends both. The worker tells what it is about to do with which kernel; when it dies, or says
nothing for ``patience`` seconds, that kernel is to blame, and the others are measured again by a new worker.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

import attrs

from phyai.catalog import Catalog
from phyai.environment import Environment
from phyai.errors import CallError
from phyai.policy import Policy
from phyai.tune.measure import Settings, measure
from phyai.tune.record import Result, TuneError
from phyai.tune.task import Task
from phyai.tune.timers import Timer
from phyai.tune.worker import policy_texts, timer_of

#: Seconds without a word after which a kernel counts as hanging. Compiling one can take a while.
PATIENCE = 120.0
#: Seconds after the deadline in which a worker may still finish what it does.
_GRACE = 5.0
#: Characters of a line that is read at once, and of a dead worker's last words that are shown.
_MAX_LINE, _SHOWN = 16 << 20, 2000
DISCOVER = "phyai.plugins:discover"


@attrs.frozen
class Measured:
    """The results for one task, None where the time ran out, and how they were timed."""

    results: Mapping[str, Result] | None
    method: str


class Measurer(Protocol):
    """Whatever can measure a task."""

    def measure(self, task: Task, kernels: Sequence[str], policy: Policy, *, deadline: float = math.inf) -> Measured:
        """Time ``kernels``, the incumbent first. ``deadline`` is of ``time.monotonic``.

        Raises:
            CallError: no tensors can be made for the task.
            TuneError: measuring itself does not work.
        """

    def close(self) -> None:
        """Let go of what is held."""


@attrs.define(eq=False)
class InProcess:
    """Measures right here: for kernels that are known to behave, and for tests with a timer of their own."""

    catalog: Catalog
    environment: Environment
    settings: Settings = attrs.field(factory=Settings)
    timer: Timer | None = None

    def measure(self, task: Task, kernels: Sequence[str], policy: Policy, *, deadline: float = math.inf) -> Measured:
        timer = self.timer or timer_of(self.environment, graph=task.capture)
        results = measure(
            task, kernels, self.catalog, policy, self.environment, timer, settings=self.settings, deadline=deadline
        )
        return Measured(results, timer.method)

    def close(self) -> None:
        """Nothing is held."""


@attrs.define(eq=False)
class Isolated:
    """Measures in a process of its own, which makes its catalog with ``source`` (``"module:function"``).

    Use it in a ``with`` statement, or :meth:`close` it.
    """

    catalog: Catalog
    environment: Environment
    settings: Settings = attrs.field(factory=Settings)
    source: str = DISCOVER
    patience: float = PATIENCE
    _worker: _Process | None = attrs.field(default=None, init=False)

    def measure(self, task: Task, kernels: Sequence[str], policy: Policy, *, deadline: float = math.inf) -> Measured:
        blamed: dict[str, str] = {}
        method = "cpu" if self.environment.device.type == "cpu" else "graph" if task.capture else "eager"
        request = {"task": task.to_json(self.catalog), "settings": attrs.asdict(self.settings)}
        while True:
            left = [id for id in kernels if id not in blamed]
            if not left:
                return Measured({id: Result(problem=blamed[id]) for id in kernels}, method)
            try:
                answer = self._running().ask({**request, "kernels": left}, policy, deadline, self.patience)
            except _Lost as lost:
                self.close()
                if lost.kernel is None:
                    raise TuneError(f"the process that measures {lost.why}\n{lost.said}".rstrip()) from None
                blamed[lost.kernel] = lost.why
                continue
            if answer is None:
                self.close()  # it is late, and busy with what nobody waits for
            if answer is None or answer["results"] is None:
                return Measured(None, method)
            found = {id: Result.from_json(result) for id, result in answer["results"].items()}
            return Measured({id: found[id] if id in found else Result(problem=blamed[id]) for id in kernels}, method)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def __enter__(self) -> Isolated:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> _Process:
        if self._worker is None:
            device = self.environment.device
            self._worker = _Process(
                device.type if device.type == "cpu" else f"{device.type}:{device.index}", self.source
            )
        return self._worker


class _Lost(Exception):
    """The worker died or hangs, while it was busy with ``kernel``; ``said`` is the end of what it wrote."""

    def __init__(self, why: str, kernel: str | None, said: str) -> None:
        super().__init__(why)
        self.why, self.kernel, self.said = why, kernel, said


class _Process:
    """One worker, and a thread that reads what it says."""

    def __init__(self, device: str, source: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - stop() closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "phyai.tune.worker", "--device", device, "--catalog", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._lines: queue.Queue[str] = queue.Queue()  # an empty one: no more will come
        threading.Thread(target=self._read, daemon=True).start()
        self._policy: Policy | None = None
        self._ready = False

    def ask(
        self, request: Mapping[str, Any], policy: Policy, deadline: float, patience: float
    ) -> dict[str, Any] | None:
        """The worker's answer; None where the deadline passes first.

        Raises:
            _Lost: it died, or was silent too long.
            CallError: it refuses the task.
        """
        if not self._ready:
            if self._next(None, "started", deadline, patience) is None:
                return None
            self._ready = True
        seconds = None if deadline == math.inf else deadline - time.monotonic()
        texts = {} if policy is self._policy else {"policy": policy_texts(policy)}
        self._send({**request, "seconds": seconds, **texts})
        self._policy = policy
        kernel, doing = None, "began"
        while True:
            event = self._next(kernel, doing, deadline, patience)
            if event is None or event["event"] == "done":
                return event
            if event["event"] == "refused":
                raise CallError(event["why"])
            kernel, doing = event["kernel"], event["event"]

    def stop(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead: the next line says so
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def _next(self, kernel: str | None, doing: str, deadline: float, patience: float) -> dict[str, Any] | None:
        late = deadline + _GRACE - time.monotonic()
        try:
            line = self._lines.get(timeout=max(0.0, min(patience, late)))
        except queue.Empty:
            if late < patience:
                return None
            raise self._lost(f"hangs: it said nothing for {patience:g} s", kernel, doing) from None
        if not line:
            raise self._lost(_ending(self._process.wait()), kernel, doing)
        event: dict[str, Any] = json.loads(line)
        return event

    def _lost(self, why: str, kernel: str | None, doing: str) -> _Lost:
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _SHOWN))
        said = self._errors.read().decode(errors="replace")
        return _Lost(f"{why} (while it was at {doing!r})" if kernel else why, kernel, said)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # closed by stop()
            while line := self._process.stdout.readline(_MAX_LINE):
                self._lines.put(line)
        self._lines.put("")


def _ending(status: int) -> str:
    if status >= 0:
        return f"crashed: its process ended with status {status}"
    try:
        return f"crashed: its process was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"crashed: its process was ended by signal {-status}"
