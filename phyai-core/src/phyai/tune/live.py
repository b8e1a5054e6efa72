"""Timing kernels where they run: inside the model's own step, with one kind of call at a time given another kernel.

This is how attention is measured. What it costs hangs on what lies around it: plans shared between layers, what the
projections before it left in the cache. The timings are those of whole steps, and are marked ``live``.

A candidate that hangs here hangs the process, so only those come here that did well when they were measured in a
process of their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from phyai.dispatch import Dispatcher, Site
from phyai.dispatch.memo import Cells, Memo
from phyai.facts import Facts
from phyai.policy import Layer, Policy, Restriction, Rule
from phyai.predicates import Predicate, any_of, match
from phyai.tune.key import CallKey
from phyai.tune.measure import Settings, disqualified, interleave
from phyai.tune.record import Result

#: The ops that are measured so.
LIVE_OPS = ("attention", "attention_paged")
#: Steps are long, and what is to be seen is small: fewer rounds, and nobody is given up before the end.
LIVE_SETTINGS = Settings(rounds=9, trial=9)
_PIN_PRIORITY = 1 << 30

Step = Callable[[], Any]


def measure_live(
    dispatcher: Dispatcher,
    calls: Mapping[Site, Iterable[Facts]],
    kernels: Sequence[str],
    step: Step,
    *,
    settings: Settings = LIVE_SETTINGS,
    clock: Callable[[], float] = time.perf_counter,
    deadline: float = math.inf,
) -> dict[str, Result] | None:
    """Seconds per step of the model with each of ``kernels`` at the given calls of its sites; None where ``deadline``
    (of ``time.monotonic``) came too soon.

    ``step`` runs the whole model once and waits until it is done. A runner that captured CUDA graphs must notice that
    ``dispatcher.epoch`` grew, and capture them anew. Everything is put back at the end.
    """
    before = {site: site.memo for site in calls}
    dispatcher.thaw()  # kernels that have not run here before may ask for workspaces
    prepared: dict[str, dict[Site, Memo]] = {}
    problems: dict[str, str] = {}
    for kernel in kernels:
        try:
            prepared[kernel] = {site: _with_kernel(dispatcher, site, seen, kernel) for site, seen in calls.items()}
        except Exception as error:
            problems[kernel] = disqualified(error, kernel)
    samplers = {kernel: partial(_sample, dispatcher, memos, step, clock) for kernel, memos in prepared.items()}
    try:
        timed = interleave(samplers, settings, deadline=deadline)
    finally:
        _put(dispatcher, before)
    if timed is None:
        return None
    return {kernel: timed.get(kernel) or Result(problem=problems[kernel]) for kernel in kernels}


def _sample(dispatcher: Dispatcher, memos: Mapping[Site, Memo], step: Step, clock: Callable[[], float]) -> float:
    _put(dispatcher, memos)
    step()  # what the change brings with it: first calls, captures
    start = clock()
    step()
    return clock() - start


def _with_kernel(dispatcher: Dispatcher, site: Site, seen: Iterable[Facts], kernel: str) -> Memo:
    """What the site would remember had a rule pinned calls of these kinds, and no others, to ``kernel``."""
    seen = tuple(seen)
    kinds = {CallKey.of(facts, dispatcher.catalog).text: facts for facts in seen}
    condition = any_of(*(match(CallKey.of(facts, dispatcher.catalog).conditions()) for facts in kinds.values()))
    policy = _pinned(dispatcher.policy, condition, kernel)
    memo = Memo(Cells(site.op, site.static, dispatcher.catalog, policy))
    for facts in seen:
        dispatcher.decide_in(site, memo, facts, policy)
    return memo


def _pinned(policy: Policy, condition: Predicate, kernel: str) -> Policy:
    rule = Rule(
        id="candidate",
        match=condition,
        priority=_PIN_PRIORITY,
        restriction=Restriction((kernel,), pin=True),
        layer=Layer.OVERRIDE,
    )
    return attrs.evolve(policy, rules=(rule, *policy.rules))


def _put(dispatcher: Dispatcher, memos: Mapping[Site, Memo]) -> None:
    """Give sites their memos, open, and tell whoever captured graphs."""
    for site, memo in memos.items():
        site.memo = memo
    dispatcher.thaw()
