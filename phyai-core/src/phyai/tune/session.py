"""Tuning: which tasks need measuring, measuring them within a budget of time, and keeping what came of it."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from phyai.catalog import Catalog
from phyai.composite import depth
from phyai.environment import Environment
from phyai.errors import CallError
from phyai.policy import Layer, Policy
from phyai.tune.choose import Untuned, untuned
from phyai.tune.isolation import Measurer
from phyai.tune.layer import Chosen, TuningLayer, judge, tuning_layer
from phyai.tune.record import Measurement, Result
from phyai.tune.stamp import source_of, stamp_of
from phyai.tune.store import Store, merge
from phyai.tune.task import Task

#: Told how many tasks are done, of how many, and what comes next.
Progress = Callable[[int, int, str], None]


@attrs.frozen
class Outcome:
    """What one tuning did. ``layer`` are the rules that now follow from the store, ``own`` those that
    would from this tuning's measurements alone.

    ``measured`` are the new measurements, ``known`` the keys whose earlier ones still count, ``stale`` maps keys to why
    theirs no longer did, ``skipped`` maps keys to why nothing was measured, ``late`` are the keys that the budget left
    out. ``problem`` is what was wrong with the store's file.
    """

    layer: TuningLayer
    own: TuningLayer = attrs.field(factory=TuningLayer)
    measured: tuple[Measurement, ...] = ()
    known: tuple[str, ...] = ()
    stale: Mapping[str, str] = attrs.field(factory=dict)
    skipped: Mapping[str, str] = attrs.field(factory=dict)
    late: tuple[str, ...] = ()
    seconds: float = 0.0
    problem: str | None = None

    @property
    def failures(self) -> dict[str, str]:
        """Candidates that were disqualified, each with the first reason."""
        found: dict[str, str] = {}
        for measurement in self.measured:
            for id, result in measurement.results.items():
                if result.problem is not None:
                    found.setdefault(id, f"{measurement.key}: {result.problem}")
        return found


def tune(
    tasks: Iterable[Task],
    catalog: Catalog,
    policy: Policy,
    environment: Environment,
    measurer: Measurer,
    *,
    store: Store | None = None,
    earlier: Iterable[Measurement] = (),
    seconds: float = math.inf,
    again: bool = False,
    progress: Progress = lambda done, total, what: None,
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
) -> Outcome:
    """Measure the candidates of ``tasks`` that are not known yet, or all of them ``again``.

    Every result goes into ``store`` at once, so that whatever ends the process loses only what was under way. Without a
    store, ``earlier`` measurements count. Tasks that the most sites make come first, composite ops last: the kernels of
    their parts are chosen by then.

    Raises:
        TuneError: the store cannot be read or written, or measuring does not work.
    """
    started = time.monotonic()
    deadline = started + seconds
    contents = store.read() if store is not None else None
    held = contents.measurements if contents is not None else tuple(earlier)
    problem = contents.problem if contents is not None else None
    plain = policy.with_rules((), Layer.TUNING)
    todo = _plan(tasks, catalog, environment)
    measured: list[Measurement] = []
    known, late, stale, skipped = [], [], {}, {}
    below, level = plain, 0
    for position, (key, task) in enumerate(todo):
        progress(position, len(todo), key)
        if catalog.op(task.op).chained:
            skipped[key] = f"{task.op} is decomposed into the model's own layers, which are not there outside the model"
            continue
        if (own := depth(catalog.op(task.op).parts)) != level:  # the ops of its parts have been measured
            below, level = tuning_layer(held, catalog, policy, environment).onto(plain), own
        facts = task.facts(catalog, environment)
        candidates = untuned(facts, catalog, below, environment)
        if len(candidates.kernels) < 2:
            skipped[key] = _why_nothing(candidates)
            continue
        if not again:
            found = judge([m for m in held if m.key == key], catalog, below, environment)
            if isinstance(found, Chosen):
                known.append(key)
                continue
            if found is not None:
                stale[key] = found
        if time.monotonic() > deadline:
            late.append(key)
            continue
        try:
            got = measurer.measure(task, candidates.ids, below, deadline=deadline)
        except CallError as error:
            skipped[key] = str(error)
            continue
        if got.results is None:
            late.append(key)
            continue
        measurement = measurement_of(task, got.results, got.method, candidates, catalog, environment, now())
        measured.append(measurement)
        if store is not None:
            written = store.add([measurement])
            held, problem = written.measurements, problem or written.problem
        else:
            held = merge(held, [measurement])
    progress(len(todo), len(todo), "")
    return Outcome(
        layer=tuning_layer(held, catalog, policy, environment),
        own=tuning_layer(measured, catalog, policy, environment),
        measured=tuple(measured),
        known=tuple(known),
        stale=stale,
        skipped=skipped,
        late=tuple(late),
        seconds=time.monotonic() - started,
        problem=problem,
    )


def measurement_of(
    task: Task,
    results: Mapping[str, Result],
    method: str,
    candidates: Untuned,
    catalog: Catalog,
    environment: Environment,
    when: datetime.datetime,
) -> Measurement:
    """The record of one task's results."""
    key = task.key(catalog, environment)
    kernels = [catalog.kernel(id) for id in results]
    params = candidates.params
    sources = {k.id: source_of(k, catalog, candidates.parts, params.get(k.id, "")) for k in kernels}
    return Measurement(
        key=key.text,
        op=key.op,
        facts=key.facts,
        bucket=key.bucket,
        at=dict(task.case.dims),
        when=when.astimezone(datetime.UTC).isoformat(timespec="microseconds"),
        method=method,
        stamp=stamp_of(environment, kernels),
        incumbent=candidates.ids[0],
        results={id: attrs.evolve(result, source=sources[id]) for id, result in results.items()},
        calls=max(1, len(task.sites)),
    )


def _plan(tasks: Iterable[Task], catalog: Catalog, environment: Environment) -> list[tuple[str, Task]]:
    """The tasks by key, each kind of call once."""
    found: dict[str, Task] = {}
    for task in tasks:
        found.setdefault(task.key(catalog, environment).text, task)
    order: Sequence[tuple[str, Task]] = sorted(found.items(), key=lambda item: -len(item[1].sites))
    return sorted(order, key=lambda item: depth(catalog.op(item[1].op).parts))


def _why_nothing(candidates: Untuned) -> str:
    if candidates.kernels:
        return f"{candidates.ids[0]} is the only kernel that may run it"
    return "no kernel may run it"
