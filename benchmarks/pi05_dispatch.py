"""What dispatching adds to π0.5: the runner's CUDA graph beside one of the same kernels launched by a flat script.

    python benchmarks/pi05_dispatch.py --out results/pi05_dispatch.json

One pass of the model is noted as a list of calls: the ``run`` of every kernel that was chosen, and torch's own
operators between them, with their tensors. The script makes those calls one after another, with no dispatcher, call
site, layer or runner; it is captured in a graph of its own. Both graphs are replayed in turns. They must hold the same
kernels and compute the same bits. Timed too, for information: both without a graph, where the host is what takes the
time, and a graph of the kernels alone, without torch's operators between them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from phyai.engine import DeviceConfig, Engine, EngineArgs, EngineConfig, RuntimeConfig
from phyai.plugins import discover
from phyai.policy import Policy, parse_policy
from phyai_models.bench.tape import Tape, record_tape
from phyai_models.bench.timeline import profile
from phyai_models.pi.config import PiConfig
from phyai_models.pi.hosted import RandomCheckpoint
from phyai_models.pi.inputs import Inputs
from phyai_models.pi05 import PI05Args

POLICY = Path(os.path.relpath(Path(__file__).parents[1] / "policies" / "pi05" / "h200_bf16.yaml"))
LAYERS = "overrides:\n- {id: layers, match: {op: expert_steps}, restrict_to: decomposed.expert_steps}\n"
#: The expert in one launch, where a kernel offers that, and layer by layer: 2,500 more calls to dispatch.
CASES = {"one_launch": "", "layer_by_layer": LAYERS}


def inputs_of(config: PiConfig, *, cameras: int, prompt: int, batch: int, seed: int = 0) -> Inputs:
    """A random batch, all prompt tokens valid."""
    g, size = torch.Generator().manual_seed(seed), config.vision.image_size
    return Inputs(
        images=torch.rand(batch, cameras, 3, size, size, generator=g) * 2 - 1,
        camera_mask=torch.ones(batch, cameras, dtype=torch.bool),
        tokens=torch.randint(0, config.vocab_size, (batch, prompt), generator=g),
        token_mask=torch.ones(batch, prompt, dtype=torch.bool),
        state=torch.rand(batch, config.max_state_dim, generator=g) * 2 - 1,
        noise=torch.randn(batch, config.chunk_size, config.max_action_dim, generator=g),
    )


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


def policy_of(path: Path | None, more: str, catalog: Any) -> Policy | None:
    if path is None and not more:
        return None
    text = path.read_text() if path is not None else "schema: phyai.kernel/v1\n"
    return parse_policy((text + more).encode(), file=str(path or "none"), catalog=catalog).policy


def measure(given: argparse.Namespace, more: str) -> dict[str, Any]:
    """One case in an engine of its own."""
    catalog, gpu = discover(), given.device.startswith("cuda")
    weights = given.checkpoint or RandomCheckpoint(PiConfig.standard("pi05", cameras=given.cameras))
    runtime = RuntimeConfig("graph" if gpu else "static", prompt_buckets=(), max_batch=given.batch)
    config = EngineConfig(DeviceConfig(given.device, given.dtype), runtime=runtime)
    policy = policy_of(given.policy, more, catalog)
    with Engine(EngineArgs("pi05", PI05Args(weights), config), policy=policy, catalog=catalog) as engine:
        model = engine.model.config  # type: ignore[attr-defined]
        inputs = inputs_of(model, cameras=given.cameras, prompt=given.prompt_tokens, batch=given.batch)
        return compare(engine, inputs, steps=given.steps, runs=given.runs)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--checkpoint", help="directory of a checkpoint (default: random weights at full size)")
    parser.add_argument("--policy", type=Path, default=POLICY)
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="only this case; repeat it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--cameras", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--runs", type=int, default=200, help="replays of each graph (default: 200)")
    given = parser.parse_args(argv)
    gpu = given.device.startswith("cuda")
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if gpu else "cpu", "torch": torch.__version__,
        "given": {name: str(value) for name, value in vars(given).items() if name != "out"}, "cases": {},
    }  # fmt: skip
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
