"""Whether π0.5 computes the same bits twice, and what asking for that costs.

    python benchmarks/pi05_reproducible.py --exact --out results/pi05_reproducible.json
    python benchmarks/pi05_reproducible.py --exact --policy policies/pi05/h200_fp8.yaml --out results/pi05_fp8.json

Under each policy, an engine answers some requests, the same ones again in another order, and a second engine, with
graphs of its own, answers them once more. All answers to a request must have the same bits. Beside that: the time of
the whole inference, and the kernels whose declarations do not promise it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import attrs
import torch
from phyai.errors import NoKernelError
from phyai.plugins import discover
from phyai.policy import Policy, parse_policy
from phyai_models.bench.timing import time_device
from phyai_models.pi.config import PiConfig
from phyai_models.pi.inputs import Inputs
from pi05_parts import engine_of, inputs_of, options, record_of

ASKED = "defaults: {numerics: reproducible}\n"
BARE = "schema: phyai.kernel/v1\n"
#: Whether the rules of ``--policy`` hold, and whether reproducible kernels are asked for.
CASES = {"policy": (True, False), "policy_reproducible": (True, True), "reproducible": (False, True)}


def policy_of(case: str, path: Path, catalog: Any) -> Policy:
    rules, asked = CASES[case]
    text = (path.read_text() if rules else BARE) + (ASKED if asked else "")
    return parse_policy(text.encode(), file=f"{case} of {path}", catalog=catalog).policy


def requests(config: PiConfig, given: argparse.Namespace) -> list[Inputs]:
    """Random batches, with prompts of different lengths."""
    made, g = [], torch.Generator().manual_seed(0)
    for number in range(given.requests):
        lengths = torch.full((given.batch, 1), max(1, given.prompt_tokens - 3 * number))
        mask = torch.arange(given.prompt_tokens)[None] < lengths
        made.append(attrs.evolve(inputs_of(config, given, g), token_mask=mask))
    return made


def answers(
    given: argparse.Namespace, policy: Policy, catalog: Any, *, twice: bool
) -> tuple[list[list[torch.Tensor]], dict[str, Any]]:
    """Every answer to every request of one engine, and what is to be known of the engine."""
    gpu = given.device.startswith("cuda")
    lengths = {"prompt_buckets": ()} if given.exact else {}
    with engine_of(given, policy, catalog, **lengths) as engine:
        runner = engine.model.runner  # type: ignore[attr-defined]
        batches = requests(runner.config, given)
        order = [*range(len(batches)), *(reversed(range(len(batches))) if twice else ())]
        found: list[list[torch.Tensor]] = [[] for _ in batches]
        for number in order:
            found[number].append(runner(batches[number], given.steps).clone())
        replay = runner.program(batches[0], given.steps).recording.replay
        timing = time_device(replay, runner.model.device, warmup=10 if gpu else 1, runs=given.runs)
        chosen = {
            (str(decision.facts.get("role")), site.op, decision.kernel)
            for site in engine.dispatcher.report().sites
            for decision in site.decisions
            if decision.kernel is not None
        }
    unpromised = sorted(
        {f"{role} {op}: {kernel.id}" for role, op, kernel in chosen if not kernel.numerics.reproducible}
    )
    kernels = sorted({f"{role} {op}: {kernel.id}" for role, op, kernel in chosen})
    return found, {"timing": attrs.asdict(timing), "not_declared_reproducible": unpromised, "kernels": kernels}


def measure(case: str, given: argparse.Namespace, catalog: Any) -> dict[str, Any]:
    policy = policy_of(case, given.policy, catalog)
    try:
        first, about = answers(given, policy, catalog, twice=True)
        second, _ = answers(given, policy, catalog, twice=False)
    except NoKernelError as error:  # an op without a reproducible kernel here; the message names it
        return {"no_kernel": str(error)}
    return {
        "same_bits_in_one_engine": all(torch.equal(*both) for both in first),
        "same_bits_in_two_engines": all(torch.equal(a[0], b[0]) for a, b in zip(first, second, strict=True)),
        "finite": all(bool(a[0].isfinite().all()) for a in first),
        "answers_differ_between_requests": not torch.equal(first[0][0], first[-1][0]),
        **about,
    }


def main(argv: list[str] | None = None) -> None:
    parser = options(__doc__, CASES, runs=50)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--exact", action="store_true", help="a graph per prompt length, instead of buckets")
    given = parser.parse_args(argv)
    catalog, record = discover(), record_of(given)
    for case in given.case or CASES:
        found = record["cases"][case] = measure(case, given, catalog)
        if "timing" in found and "timing" in record["cases"].get("policy", {}):
            base = record["cases"]["policy"]["timing"]["p50"]
            found["times_as_long_as_policy"] = found["timing"]["p50"] / base
        given.out.write_text(json.dumps(record, indent=1) + "\n")
        shown = {name: value for name, value in found.items() if name not in ("kernels", "timing")}
        print(f"{case:20} {found['timing']['p50']:.3f} ms " if "timing" in found else f"{case:20} ", shown, flush=True)


if __name__ == "__main__":
    main()
