"""What dispatching adds to π0.5: the runner's CUDA graphs beside one of the same kernels launched by a flat script.

    python benchmarks/pi05_dispatch.py --out results/pi05_dispatch.json

One pass of the model is noted as a list of calls: the ``run`` of every kernel that was chosen, and torch's own
operators between them, with their tensors. The script makes those calls one after another, with no dispatcher, call
site, layer or runner; it is captured in a graph of its own, and replayed in turns with the runner's two. They must
hold the same kernels and compute the same bits. Timed too, for information: both without a graph, where the host is
what takes the time, and a graph of the kernels alone, without torch's operators between them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from phyai.engine import Engine
from phyai.plugins import discover
from phyai.policy import parse_policy
from phyai_models.bench.tape import Tape, record_tape
from phyai_models.bench.timeline import profile
from phyai_models.pi.inputs import Inputs
from pi05_parts import LAYERS, engine_of, inputs_of, options, record_of

#: The expert in one launch, where a kernel offers that, and layer by layer: 2,500 more calls to dispatch.
CASES = {"one_launch": "", "layer_by_layer": LAYERS}


@torch.no_grad()
def compare(engine: Engine, inputs: Inputs, *, steps: int, runs: int) -> dict[str, Any]:
    """The runner's recording of ``inputs`` beside the script of the same calls."""
    runner = engine.model.runner  # type: ignore[attr-defined]
    device = runner.model.device
    program = runner.program(inputs, steps)
    program.load(inputs, replan=False)
    tape = record_tape(program.compute, engine.dispatcher)
    kernels = Tape([call for call in tape.calls if call.site is not None])
    script = tape.script()
    replays = {"runner": program.recording.replay, "script": recorded(script, device)}
    replays["kernels_alone"] = recorded(kernels.script(), device)
    answers = {}
    for name in ("script", "runner"):
        program.actions.zero_()
        replays[name]()
        answers[name] = program.actions.clone()
    sequences = {name: [span.name for span in profile(replays[name], device)] for name in ("runner", "script")}
    graphs = interleaved(replays, device, runs)
    eager = interleaved({"runner": program.compute, "script": script}, device, max(3, runs // 10), wall=True)
    ratio = graphs["runner"] / graphs["script"]
    return {
        "runner_ms": graphs["runner"], "script_ms": graphs["script"], "ratio": ratio,
        "within_1_percent": abs(ratio - 1) <= 0.01, "same_actions": torch.equal(answers["runner"], answers["script"]),
        "same_kernels": None if device.type == "cpu" else sequences["runner"] == sequences["script"],
        "kernels": len(sequences["runner"]),
        "kernels_alone_ms": graphs["kernels_alone"], "calls_of_kernels": len(kernels.calls),
        "torch_operators_between": len(tape.calls) - len(kernels.calls),
        "without_a_graph": {f"{name}_ms": value for name, value in eager.items()},
    }  # fmt: skip


def recorded(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """``work`` as a CUDA graph; on a CPU, itself."""
    if device.type != "cuda":
        return work
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph.replay


def interleaved(
    works: Mapping[str, Callable[[], object]], device: torch.device, runs: int, *, wall: bool = False
) -> dict[str, float]:
    """The median milliseconds of each, one after another in every round, whose order rotates."""
    found: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for round_ in range(-3, runs):
        pending = []
        for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
            if device.type != "cuda" or wall:
                wait()
                begin = time.perf_counter()
                works[name]()
                wait()
                pending.append((name, (time.perf_counter() - begin) * 1e3))
                continue
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            events[0].record()
            works[name]()
            events[1].record()
            pending.append((name, events))
        wait()
        for name, taken in pending if round_ >= 0 else ():
            found[name].append(taken if isinstance(taken, float) else taken[0].elapsed_time(taken[1]))
    return {name: statistics.median(each) for name, each in found.items()}


def measure(given: argparse.Namespace, more: str) -> dict[str, Any]:
    """One case in an engine of its own."""
    catalog = discover()
    policy = parse_policy((given.policy.read_text() + more).encode(), file=str(given.policy), catalog=catalog).policy
    with engine_of(given, policy, catalog, prompt_buckets=()) as engine:
        inputs = inputs_of(engine.model.config, given, torch.Generator().manual_seed(0))  # type: ignore[attr-defined]
        return compare(engine, inputs, steps=given.steps, runs=given.runs)


def main(argv: list[str] | None = None) -> None:
    given = options(__doc__, CASES, runs=200).parse_args(argv)
    record = record_of(given)
    for case in given.case or CASES:
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
        found = record["cases"][case] = measure(given, CASES[case])
        given.out.write_text(json.dumps(record, indent=1) + "\n")
        print(
            f"{case:15} runner {found['runner_ms']:.3f} ms, script {found['script_ms']:.3f} ms, ratio "
            f"{found['ratio']:.4f}; same kernels {found['same_kernels']}, same actions {found['same_actions']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
