"""Tuning a model that is loaded: its own calls are recorded, measured, and decided anew."""

from __future__ import annotations

import datetime
import math
import time

import attrs

from phyai.dispatch import Dispatcher, Site
from phyai.facts import Facts
from phyai.policy import Layer
from phyai.tune.choose import untuned
from phyai.tune.isolation import Measurer
from phyai.tune.layer import tuning_layer
from phyai.tune.live import LIVE_OPS, Step, measure_live
from phyai.tune.record import Measurement
from phyai.tune.session import Outcome, Progress, measurement_of, tune
from phyai.tune.store import Store, merge
from phyai.tune.task import Recording, Task, recording


def tune_model(
    dispatcher: Dispatcher,
    step: Step,
    measurer: Measurer,
    *,
    store: Store | None = None,
    seconds: float = math.inf,
    again: bool = False,
    live: bool = True,
    progress: Progress = lambda done, total, what: None,
) -> Outcome:
    """Measure the calls that ``step`` makes, and put what follows into the dispatcher's policy.

    ``step`` runs the whole model once, on a request as in production. It runs once to record
    the calls, and where attention is measured ``live`` as often as that takes. The budget of ``seconds`` ends the
    measuring, not a step that is under way.

    Raises:
        TuneError: the store cannot be read or written, or measuring does not work.
        NeedsReload: what was chosen needs weights in another layout; the policy stays as it was.
    """
    started = time.monotonic()
    step = _waited(step, dispatcher)
    with recording(dispatcher) as seen:
        step()
    catalog, environment = dispatcher.catalog, dispatcher.environment
    tasks = seen.tasks(catalog, environment)
    outcome = tune(
        tasks,
        catalog,
        dispatcher.policy,
        environment,
        measurer,
        store=store,
        seconds=seconds - (time.monotonic() - started),
        again=again,
        progress=progress,
    )
    if live:
        outcome = _live(outcome, dispatcher, seen, tasks, step, store, started + seconds, again, progress)
    dispatcher.replace_policy(outcome.layer.onto(dispatcher.policy))
    return attrs.evolve(outcome, seconds=time.monotonic() - started)


def _waited(step: Step, dispatcher: Dispatcher) -> Step:
    """``step``, and then a wait for the device."""
    if dispatcher.environment.device.type != "cuda":
        return step

    def waited() -> None:
        import torch

        step()
        torch.cuda.synchronize()

    return waited


def _live(
    outcome: Outcome,
    dispatcher: Dispatcher,
    seen: Recording,
    tasks: tuple[Task, ...],
    step: Step,
    store: Store | None,
    deadline: float,
    again: bool,
    progress: Progress,
) -> Outcome:
    """Time in the model what belongs there, and was measured elsewhere without harm."""
    catalog, environment = dispatcher.catalog, dispatcher.environment
    plain = dispatcher.policy.with_rules((), Layer.TUNING)
    made: list[Measurement] = []
    waiting = [task for task in tasks if task.op in LIVE_OPS]
    for position, task in enumerate(waiting):
        key = task.key(catalog, environment).text
        known = outcome.layer.of(key)
        if known is None or (known.measurement.method == "live" and not again):
            continue
        progress(position, len(waiting), f"live: {key}")
        candidates = untuned(task.facts(catalog, environment), catalog, plain, environment)
        sound = known.measurement.usable()
        kernels = [id for id in candidates.ids if id in sound]
        if len(kernels) < 2:
            continue
        calls = _calls_of(key, seen, dispatcher)
        timed = (
            measure_live(dispatcher, calls, kernels, step, deadline=deadline) if time.monotonic() < deadline else None
        )
        if timed is None:
            outcome = attrs.evolve(outcome, late=(*outcome.late, f"{key} (live)"))
            continue
        results = {id: timed.get(id) or known.measurement.results[id] for id in known.measurement.results}
        now = datetime.datetime.now(datetime.UTC)
        made.append(measurement_of(task, results, "live", candidates, catalog, environment, now))
    if not made:
        return outcome
    if store is not None:
        held = store.add(made).measurements
    else:
        held = merge((one.measurement for one in outcome.layer.chosen), made)
    layer = tuning_layer(held, catalog, dispatcher.policy, environment)
    measured = (*outcome.measured, *made)
    own = tuning_layer(measured, catalog, dispatcher.policy, environment)
    return attrs.evolve(outcome, layer=layer, own=own, measured=measured)


def _calls_of(key: str, seen: Recording, dispatcher: Dispatcher) -> dict[Site, list[Facts]]:
    """The recorded calls of one key, by site."""
    found: dict[Site, list[Facts]] = {}
    for site, facts in seen.each():
        if seen.task_of(site, facts).key(dispatcher.catalog, dispatcher.environment).text == key:
            found.setdefault(site, []).append(facts)
    return found
