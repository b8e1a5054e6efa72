"""The process that candidates run in: what crashes or hangs takes it down, and nothing else.

Reads tasks from standard input and writes events and results to standard output, a JSON object a line; what kernels
print goes to standard error. :mod:`phyai.tune.isolation` is the other end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from phyai.catalog import Catalog
from phyai.environment import Environment
from phyai.errors import PhyAIError
from phyai.policy import Layer, Policy, parse_policy
from phyai.policy._write import policy_yaml
from phyai.targets import load as load_target
from phyai.tune.measure import Settings, measure
from phyai.tune.task import Task
from phyai.tune.timers import Timer


def timer_of(environment: Environment, *, graph: bool) -> Timer:
    """The timer for calls on a device: ``graph``, inside CUDA graphs."""
    from phyai.tune.prepare import torch_device

    if environment.device.type == "cuda":
        from phyai.tune.cuda_timer import CudaTimer

        return CudaTimer(torch_device(environment), graph=graph)
    from phyai.tune.timers import CpuTimer

    return CpuTimer()


def policy_texts(policy: Policy) -> dict[str, str]:
    """A policy as one file's text for each layer."""
    return {layer.name: policy_yaml(policy, (layer,)) for layer in Layer}


def policy_of(texts: Mapping[str, str], catalog: Catalog) -> Policy:
    """What :func:`policy_texts` wrote."""
    policy = Policy()
    for layer in Layer:
        parsed = parse_policy(texts[layer.name], catalog=catalog, base=Policy()).policy
        policy = attrs.evolve(parsed, rules=policy.rules).with_rules(parsed.rules, layer)
    return policy


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="phyai.tune.worker")
    parser.add_argument("--device", required=True)
    parser.add_argument("--catalog", required=True, metavar="MODULE:FUNCTION")
    args = parser.parse_args(argv)
    say = _take_stdout()
    catalog: Catalog = load_target(args.catalog)()
    environment = Environment.detect(args.device, libraries=catalog.libraries)
    timers: dict[bool, Timer] = {}
    policy = Policy()
    say({"event": "ready"})
    for line in sys.stdin:
        asked = json.loads(line)
        if "policy" in asked:
            policy = policy_of(asked["policy"], catalog)
        task = Task.from_json(asked["task"], catalog)
        if task.capture not in timers:
            timers[task.capture] = timer_of(environment, graph=task.capture)
        timer = timers[task.capture]
        try:
            results = measure(
                task,
                asked["kernels"],
                catalog,
                policy,
                environment,
                timer,
                settings=Settings(**asked["settings"]),
                watch=lambda what, kernel: say({"event": what, "kernel": kernel}),
                deadline=time.monotonic() + asked["seconds"] if asked["seconds"] is not None else math.inf,
            )
        except PhyAIError as error:
            say({"event": "refused", "why": str(error)})
            continue
        timed = None if results is None else {id: result.to_json() for id, result in results.items()}
        say({"event": "done", "method": timer.method, "results": timed})
    return 0


def _take_stdout() -> Callable[[Any], None]:
    """A function that writes to what was standard output; from now on that leads to standard error."""
    stream = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(event: Any) -> None:
        stream.write(json.dumps(event) + "\n")
        stream.flush()

    return say


if __name__ == "__main__":
    sys.exit(main())
