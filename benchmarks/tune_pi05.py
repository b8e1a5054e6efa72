"""What tuning π0.5 on a GPU takes, whether two tunings agree, and whether the tuned model is ever slower.

Tunes the published architecture with random weights twice, each time from an empty store and in a process tree of its
own. Reports, and checks:

- the seconds that each tuning takes (under 60),
- the choices on which the two disagree although both leads exceed their noise (none),
- the latency of a step untuned and tuned, interleaved (tuned is not slower than the noise),
- for every kind of call that was measured, what the static order chooses beside the fastest (within the margin).

Run it on the GPU: ``python benchmarks/tune_pi05.py --out benchmarks/results/tune_pi05.json``. The timings of the first
tuning go beside that, as ``tune_pi05.store.json``, and the map of the last check as ``tune_pi05.png``, which
``tune_map.py`` draws again from the store, without a GPU. It ends with status 1 where a check fails.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import tune_map
from phyai.engine import DeviceConfig, Engine, EngineArgs, EngineConfig
from phyai.plugins import discover
from phyai.policy import default_policy, load_policy
from phyai.tune import Isolated, Result, Store
from phyai.tune.compare import spread
from phyai.tune.stats import beats


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--checkpoint", help="a checkpoint's directory (default: random weights)")
    parser.add_argument("--policy", help="a policy file, for the untuned choices (default: the default order)")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=30, help="timed steps on either side")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    args = parser.parse_args(argv)
    catalog = discover()
    with tempfile.TemporaryDirectory() as folder, engine_of(args, catalog) as engine:
        request = catalog.model("pi05").example_request(engine.model)
        untuned = engine.dispatcher.policy
        engine.step(request)
        outcomes = []
        for turn in range(2):
            engine.dispatcher.replace_policy(untuned)
            store = Store(Path(folder) / f"{turn}.json")
            with Isolated(catalog, engine.host.environment) as measurer:
                outcome = engine.tune(request, seconds=args.seconds, store=store, measurer=measurer)
            measured, late = len(outcome.measured), len(outcome.late)
            print(f"tuning {turn + 1}: {outcome.seconds:.1f} s, {measured} measured, {late} left out")
            outcomes.append(outcome)
            if args.out and turn == 0:
                shutil.copyfile(store.path, args.out.with_suffix(".store.json"))
        compared = spread([outcome.own for outcome in outcomes])
        tuned = outcomes[0].layer.onto(untuned)
        sides = latencies(engine, request, {"untuned": untuned, "tuned": tuned}, args.steps)
    measurements = outcomes[0].measured
    static = tune_map.rows(measurements, catalog, untuned, engine.host.environment, "pi05")
    figures = {
        "command": shlex.join(["python", "benchmarks/tune_pi05.py", *(sys.argv[1:] if argv is None else argv)]),
        "device": str(engine.host.environment.device),
        "seconds": [round(o.seconds, 2) for o in outcomes],
        "measured": [len(o.measured) for o in outcomes],
        "late": [list(o.late) for o in outcomes],
        "disqualified": [o.failures for o in outcomes],
        "compared": len(compared),
        "changed": [
            {"key": o.key, "choices": o.choices, "leads": o.gains, "noise": o.noise, "real": o.real}
            for o in compared
            if not o.agrees
        ],
        "better": {c.measurement.key: round(c.choice.gain, 3) for c in outcomes[0].layer.chosen if c.choice.changed},
        "static choice within margin of the fastest": tune_map.check(static),
        "static": [row.to_json() for row in static],
        "step_seconds": {name: {"median": r.median, "bounds": r.bounds} for name, r in sides.items()},
    }
    checks = {
        "each tuning takes under 60 s": max(figures["seconds"]) < 60,
        "nothing was left out": not any(figures["late"]),
        "two tunings agree beyond the noise": not any(one.real for one in compared),
        "tuned is never slower": not beats(sides["untuned"].samples, sides["tuned"].samples, margin=0.0),
        "static choice within margin of the fastest, of each key": all(tune_map.check(static).values()),
    }
    figures["checks"] = checks
    text = json.dumps(figures, indent=1)
    if args.out:
        args.out.write_text(text + "\n")
        draw(static, args.out.with_suffix(".png"), f"{args.policy or 'default order'}, framed")
    print(text)
    print(tune_map.table(static))
    for what, holds in checks.items():
        print("ok  " if holds else "FAIL", what)
    return 0 if all(checks.values()) else 1


def draw(static: tuple[tune_map.Row, ...], path: Path, title: str) -> None:
    try:
        tune_map.draw(static, path, title)
    except ModuleNotFoundError as error:  # matplotlib is not on every machine with a GPU; the store is what counts
        print(f"no {path.name}, for want of {error.name}: tune_map.py draws it from the store elsewhere")


def engine_of(args: argparse.Namespace, catalog) -> Engine:
    from phyai_models.pi05 import PI05Args

    checkpoint = args.checkpoint
    if checkpoint is None:
        from phyai_models.pi.hosted import RandomCheckpoint

        checkpoint = RandomCheckpoint()
    config = EngineConfig(DeviceConfig(args.device, args.dtype))
    policy = load_policy(args.policy, catalog=catalog).policy if args.policy else default_policy()
    return Engine(EngineArgs("pi05", PI05Args(checkpoint, seed=0), config), policy=policy, catalog=catalog)


def latencies(engine: Engine, request, policies: dict, steps: int) -> dict[str, Result]:
    """Seconds per step under each policy, in turns."""
    wait = waiter(engine)
    taken: dict[str, list[float]] = {name: [] for name in policies}
    for _ in range(5):
        for name, policy in policies.items():
            engine.dispatcher.replace_policy(policy)
            for _ in range(3):
                engine.step(request)  # captures graphs anew
            for _ in range(max(1, steps // 5)):
                wait()
                start = time.perf_counter()
                engine.step(request)
                wait()
                taken[name].append(time.perf_counter() - start)
    return {name: Result(tuple(samples)) for name, samples in taken.items()}


def waiter(engine: Engine):
    """What waits for the device."""
    if engine.host.environment.device.type != "cuda":
        return lambda: None
    import torch

    return torch.cuda.synchronize


if __name__ == "__main__":
    sys.exit(main())
