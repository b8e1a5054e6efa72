"""A small world to tune in: kernels of ``activation`` that take a known time on a clock of their own."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
from phyai.catalog import Catalog
from phyai.environment import Device, Environment
from phyai.kernel import Band, Capture, Kernel, Numerics, Prepared
from phyai.plugins import Plugin, PluginStatus
from phyai.policy import Policy
from phyai.predicates import match
from phyai.testing.case import Case
from phyai.tune import InProcess, Measurement, Result, Settings, Task
from phyai.tune.timers import CpuTimer

CPU = Environment(Device("cpu", name="test"), {"torch": "1.0"})


@attrs.define
class Clock:
    """Seconds that pass only when a kernel runs."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def timer(self, **more: Any) -> CpuTimer:
        return CpuTimer(clock=self, shortest=0.0, cache_bytes=1, **more)


def kernel(id: str, run: Callable[..., Any] | None = None, when: dict[str, Any] | None = None, **more: Any) -> Kernel:
    """A kernel of ``activation`` (silu)."""
    settings: dict[str, Any] = {"numerics": Numerics(reproducible=True), "band": Band.GENERAL, "capture": Capture.SAFE}

    def prepare(facts: Any, weights: Any, params: Any, resources: Any) -> Prepared:
        return Prepared(run=run or silu)

    return Kernel(id=id, op="activation", when=match(when or {}), prepare=prepare, **{**settings, **more})


def silu(x: Any, out: Any = None, state: Any = None) -> Any:
    import torch

    return torch.nn.functional.silu(x)


def timed(id: str, clock: Clock, durations: Iterator[float] | float, **more: Any) -> Kernel:
    """A kernel whose calls take these times, in seconds."""

    def run(x: Any, out: Any = None, state: Any = None) -> Any:
        clock.now += durations if isinstance(durations, float) else next(durations)
        return silu(x)

    return kernel(id, run, **more)


def catalog(*kernels: Kernel) -> Catalog:
    backends = sorted({k.backend for k in kernels})
    return Catalog.build(
        [Plugin(PluginStatus(name), kernels=tuple(k for k in kernels if k.backend == name)) for name in backends]
    )


def task(m: int = 8, role: str | None = "expert", d: int = 16) -> Task:
    facts = {} if role is None else {"role": role}
    case = Case({"M": m, "D": d}, {"x": "fp32", "y": "fp32"}, {"activation": "silu"}, facts=facts)
    return Task("activation", case, ("site",))


def measurer(world: Catalog, clock: Clock, **settings: Any) -> InProcess:
    return InProcess(world, CPU, Settings(**settings), clock.timer())


def measurement(key: str = "k", when: int = 0, **times: float) -> Measurement:
    """A record that says nothing of a real call; names of kernels have ``_`` for a dot."""
    stamp = datetime.datetime.fromtimestamp(1.7e9 + when, datetime.UTC).isoformat(timespec="microseconds")
    results = {id.replace("_", "."): Result((t, t, t), source="1") for id, t in (times or {"a_x": 1e-6}).items()}
    return Measurement(
        key=key, op="activation", facts={"role": "r"}, bucket={"shape.M": (1, 1)}, at={"M": 1}, when=stamp,
        method="cpu", stamp={"device": "test"}, incumbent=next(iter(results)), results=results,
    )  # fmt: skip


# For measuring in another process: kernels that misbehave.


def _crash(x: Any, out: Any = None, state: Any = None) -> Any:
    os.abort()


def _hang(x: Any, out: Any = None, state: Any = None) -> Any:
    while True:
        time.sleep(60)


def _nan(x: Any, out: Any = None, state: Any = None) -> Any:
    return silu(x) * float("nan")


def _wrong(x: Any, out: Any = None, state: Any = None) -> Any:
    return silu(x) + 0.5


def _raise(x: Any, out: Any = None, state: Any = None) -> Any:
    raise ValueError("no such tile\nand more")


def _talks(x: Any, out: Any = None, state: Any = None) -> Any:
    print("a kernel that prints to standard output")
    return silu(x)


FAULTS = {"crash": _crash, "hang": _hang, "nan": _nan, "wrong": _wrong, "raise": _raise, "talks": _talks}


def faulty_catalog() -> Catalog:
    faulty = [kernel(f"faulty.activation.{name}", run, rank=-n) for n, (name, run) in enumerate(FAULTS.items())]
    return catalog(kernel("good.activation", band=Band.OPTIMIZED), *faulty)


def broken_catalog() -> Catalog:
    raise RuntimeError("the plug-ins cannot be loaded")


POLICY = Policy()
