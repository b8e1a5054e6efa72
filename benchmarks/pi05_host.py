"""What a step of π0.5 costs on the host, by the clock of a CPU, with nothing computed.

    python benchmarks/pi05_host.py --out results/pi05_host.json

The recordings of a small model are replaced by marks of the clock. What is left of ``engine.step`` is checking and
preparing a request, finding its recording, writing into its buffers, and giving the answer out: torch's operators on
small tensors and Python. *before_images* is the time until the vision tower would be launched, *before_prompt* that
until everything else would be, which a GPU spends on vision, *after* what remains. With images of 28 x 28 pixels their
bytes weigh nothing; with 224 x 224 a CPU also scales them, which is a GPU's work where there is one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from phyai.engine import DeviceConfig, Engine, EngineArgs, EngineConfig, RuntimeConfig
from phyai_models.bench.made_up import in_lerobots_names, random_inputs
from phyai_models.pi.config import PiConfig
from phyai_models.pi.hosted import LerobotBatch, RandomCheckpoint
from phyai_models.pi.inputs import TOKEN_MASK
from phyai_models.pi.requests import DeviceBatch
from phyai_models.pi05 import PI05Args
from phyai_models.runner import Recording

CAMERAS, PROMPT, STEPS = 3, 200, 10
EDGES = (28, 224)
SPANS = ("before_images", "before_prompt", "after")


def config_of(edge: int) -> PiConfig:
    """Published π0.5 with hardly any weights, and images of ``edge`` x ``edge`` pixels."""
    config = PiConfig.standard("pi05", cameras=CAMERAS)
    narrow = {"width": 32, "depth": 1, "mlp_dim": 32, "num_heads": 1, "num_kv_heads": 1, "head_dim": 16}
    return attrs.evolve(
        config,
        language_model=attrs.evolve(config.language_model, **narrow),
        expert=attrs.evolve(config.expert, **narrow),
        vision=attrs.evolve(
            config.vision, image_size=edge, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=1,
        ),
        vocab_size=512,
    )  # fmt: skip


def requests_of(config: PiConfig) -> dict[str, list[Any]]:
    """Requests by case; those of one case take turns."""
    inputs = random_inputs(config, torch.Generator().manual_seed(0), batch=1, cameras=CAMERAS, prompt=PROMPT)
    floats, bytes_ = (in_lerobots_names(inputs, config, STEPS, bytes_=asked) for asked in (False, True))
    shorter = LerobotBatch({**floats.tensors, TOKEN_MASK: torch.arange(PROMPT)[None] < PROMPT - 1}, num_steps=STEPS)
    masks = inputs.token_mask, inputs.camera_mask
    tensors = DeviceBatch(inputs.images, inputs.tokens, inputs.noise, *masks, inputs.state, STEPS)
    return {
        "lerobot_float32": [floats], "lerobot_uint8": [bytes_], "device_batch": [tensors],
        "lerobot_changing_lengths": [floats, shorter],
    }  # fmt: skip


def spans_of(engine: Engine, requests: list[Any], runs: int) -> dict[str, Any]:
    """Microseconds of the parts of a step, the median of ``runs``, and of the whole the shortest, too."""
    marks: list[float] = []

    def mark() -> None:
        marks.append(time.perf_counter())

    for request in requests:
        engine.step(request)
    for program in engine.model.runner._programs.values():  # type: ignore[attr-defined]
        program.rest = program.vision.recording = Recording(mark)
    taken = []
    for run in range(-20, runs):
        request = requests[run % len(requests)]
        marks.clear()
        mark()
        engine.step(request)
        mark()
        if run >= 0:
            taken.append([(end - begin) * 1e6 for begin, end in itertools.pairwise(marks)])
    whole = list(map(sum, taken))
    parts = {
        name: round(statistics.median(part), 1) for name, part in zip(SPANS, zip(*taken, strict=True), strict=True)
    }
    return {**parts, "step": round(statistics.median(whole), 1), "least_step": round(min(whole), 1)}


def measure(edge: int, runs: int) -> dict[str, Mapping[str, Any]]:
    config = config_of(edge)
    runtime = RuntimeConfig("static", (16, 48, 112, PROMPT), max_batch=1)
    settings = EngineConfig(DeviceConfig("cpu", "bf16"), runtime=runtime)
    found = {}
    for case, requests in requests_of(config).items():
        with Engine(EngineArgs("pi05", PI05Args(RandomCheckpoint(config)), settings)) as engine:
            found[case] = spans_of(engine, requests, runs)
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--runs", type=int, default=500, help="steps of each case (default: 500)")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default: 1)")
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    record: dict[str, Any] = {
        "command": f"python benchmarks/pi05_host.py --runs {given.runs} --threads {given.threads}",
        "processor": platform.processor() or platform.machine(), "torch": torch.__version__,
        "python": platform.python_version(), "threads": given.threads, "runs": given.runs,
        "case": {"cameras": CAMERAS, "prompt_tokens": PROMPT, "steps": STEPS, "batch": 1}, "microseconds": {},
    }  # fmt: skip
    for edge in EDGES:
        found = record["microseconds"][f"{edge}x{edge}"] = measure(edge, given.runs)
        given.out.write_text(json.dumps(record, indent=1) + "\n")
        for case, spans in found.items():
            print(f"{edge:4} {case:25}", ", ".join(f"{name} {value:.0f}" for name, value in spans.items()), flush=True)


if __name__ == "__main__":
    main()
