"""Measuring the candidates of one call: interleaved, with the hopeless ones stopped early.

Every round takes one sample of each candidate, starting with another one each time, so that whatever drifts (clocks,
other load) meets all of them alike. The numbers of the first candidate that runs are the yardstick for the others.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from phyai.catalog import Catalog
from phyai.decision import Decision
from phyai.environment import Environment
from phyai.memory import ran_out
from phyai.policy import Policy
from phyai.tune.prepare import Bench, disagreement
from phyai.tune.record import Result
from phyai.tune.stats import median
from phyai.tune.task import Task
from phyai.tune.timers import Sampler, Timer


@attrs.frozen
class Settings:
    """``rounds`` of samples for each candidate; one whose best sample is ``hopeless`` times the median of the fastest
    after ``trial`` rounds gets no more."""

    rounds: int = 15
    trial: int = 3
    hopeless: float = 1.5


#: Told what is going on with which kernel: ``prepare``, ``run``, ``load`` or ``sample``.
Watch = Callable[[str, str], None]


def measure(
    task: Task,
    kernels: Sequence[str],
    catalog: Catalog,
    policy: Policy,
    environment: Environment,
    timer: Timer,
    *,
    settings: Settings | None = None,
    watch: Watch = lambda what, kernel: None,
    deadline: float = math.inf,
) -> dict[str, Result] | None:
    """The timings of ``kernels``, the incumbent first; None where ``deadline`` (of ``time.monotonic``) came too soon.

    What a candidate raises disqualifies it and is recorded.

    Raises:
        CallError: the task says too little to make tensors from.
    """
    bench = Bench.of(task, catalog, policy, environment, timer)
    problems: dict[str, str] = {}
    samplers: dict[str, Sampler] = {}
    yardstick: list[Any] | None = None
    for kernel in kernels:
        if time.monotonic() > deadline:
            return None
        try:
            watch("prepare", kernel)
            candidate = bench.candidate(kernel)
            watch("run", kernel)
            given = candidate.warm_up()
            problem = disagreement(task, bench.op, given, yardstick)
            if problem is not None:
                problems[kernel] = problem
                continue
            yardstick = yardstick or given
            watch("load", kernel)
            samplers[kernel] = timer.load(candidate.calls())
        except Exception as error:
            problems[kernel] = disqualified(error, kernel)
    timed = interleave(samplers, settings or Settings(), watch=watch, deadline=deadline)
    samplers.clear()
    _collect()
    if timed is None:
        return None
    return {id: timed[id] if id in timed else Result(problem=problems[id]) for id in kernels}


def interleave(
    samplers: Mapping[str, Sampler],
    settings: Settings,
    *,
    watch: Watch = lambda what, kernel: None,
    deadline: float = math.inf,
) -> dict[str, Result] | None:
    """Samples of every candidate, in seconds per call; None where the time ran out.

    A sample that is not a positive number is none: the clock was set back. It is taken again, as often as there are
    rounds.
    """
    taken: dict[str, list[float]] = {id: [] for id in samplers}
    useless: dict[str, int] = dict.fromkeys(samplers, 0)
    problems: dict[str, str] = {}
    stopped: set[str] = set()
    for turn in range(2 * settings.rounds):
        over = {*problems, *stopped}
        waiting = [id for id in samplers if id not in over and len(taken[id]) < settings.rounds]
        if not waiting:
            break
        first = turn % len(waiting)
        for id in (*waiting[first:], *waiting[:first]):
            if time.monotonic() > deadline:
                return None
            try:
                watch("sample", id)
                sample = samplers[id]()
            except Exception as error:
                problems[id] = disqualified(error, id)
                continue
            if math.isfinite(sample) and sample > 0:
                taken[id].append(float(f"{sample:.5g}"))
            else:
                useless[id] += 1
        if turn + 1 >= settings.trial:
            stopped |= _hopeless({id: samples for id, samples in taken.items() if id not in problems}, settings)
    for id, samples in taken.items():
        if id not in problems and len(samples) < settings.trial:
            tries = useless[id] + len(samples)
            problems[id] = (
                f"cannot be timed: the clock ran backwards, or stood still, in {useless[id]} of {tries} samples"
            )
    return {id: Result(tuple(samples), problems.get(id), id in stopped) for id, samples in taken.items()}


def _hopeless(taken: Mapping[str, Sequence[float]], settings: Settings) -> set[str]:
    """The candidates whose best sample is far above the fastest one's median."""
    tried = {id: samples for id, samples in taken.items() if len(samples) >= settings.trial}
    limit = settings.hopeless * min(map(median, tried.values()), default=math.inf)
    return {id for id, samples in tried.items() if min(samples) > limit}


def _refused(error: Exception, kernel: str) -> str | None:
    """Why a dispatcher would not have the kernel: that its ``prepare`` failed, most of the time."""
    decision = getattr(error, "decision", None)
    if not isinstance(decision, Decision):
        return None
    return next((rejected.reason for rejected in decision.rejected if rejected.kernel == kernel), None)


def disqualified(error: Exception, kernel: str) -> str:
    """Why a candidate that raised cannot be measured. Memory that ran out is a reason too, and is called that: others
    were measured in what there was.

    >>> disqualified(RuntimeError("CUDA error: out of memory"), "mine.gemm")
    'memory ran out while it was measured, beside the other candidates: RuntimeError: CUDA error: out of memory'
    """
    refused = _refused(error, kernel)
    if refused is not None:
        return refused
    lines = str(error).strip().splitlines()
    said = f"{type(error).__name__}: {lines[0][:300] if lines else 'without a message'}"
    return f"memory ran out while it was measured, beside the other candidates: {said}" if ran_out(error) else said


def _collect() -> None:
    """Let go of tensors and graphs before the next call, and of what torch keeps of their memory."""
    gc.collect()
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
