"""One step of ``pi05_presets.py``, in a process of its own: writing the checkpoint, or serving it under a preset."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from phyai.files.replacing import replacing

POLICIES = Path(__file__).parents[1] / "policies" / "pi05"
BF16 = "h200_bf16"
#: Presets, and what takes their place where there is no GPU.
PRESETS: Mapping[str, str] = {
    BF16: "cpu_torch", "h200_fp8": "h200_fp8",
    "humming_w4a16": "w4a16_g128", "humming_w8a16": "w8a16", "humming_fp8": "fp8_w8a8",
    "humming_mxfp4": "mxfp4", "humming_nvfp4": "nvfp4", "humming_w8a8_int8": "w8a8_int8", "humming_w4a8": "w4a8",
}  # fmt: skip
SAMPLES, CAMERAS, STEPS = 8, 3, 10
#: A model whose products every scheme divides, for the plumbing.
TINY = {
    "language_model": {"width": 256, "depth": 2, "mlp_dim": 512, "num_heads": 4, "num_kv_heads": 1, "head_dim": 64},
    "expert": {"width": 256, "depth": 2, "mlp_dim": 512, "num_heads": 4, "num_kv_heads": 1, "head_dim": 64},
    "vision": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "vocab_size": 512,
}

Tell = Callable[[Mapping[str, Any]], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", help="checkpoint, cold:PRESET (and measured), or warm:PRESET")
    parser.add_argument("answer", type=Path, help="JSON file to write")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    what, _, name = given.step.partition(":")

    def tell(found: Mapping[str, Any]) -> None:
        save(given.answer, found)

    if what == "checkpoint":
        write_checkpoint(given, tell)
    else:
        serve(given, name, tell, measured=what == "cold")


def save(out: Path, report: Mapping[str, Any]) -> None:
    with replacing(out) as file:
        file.write((json.dumps(report, indent=1) + "\n").encode())


def write_checkpoint(given: argparse.Namespace, tell: Tell) -> None:
    """Every tensor that the published architecture asks for, random, in bf16, in one file."""
    import torch
    from phyai.plugins import discover
    from phyai_models.layers import Scope
    from phyai_models.pi.config import PiConfig
    from phyai_models.pi.loading import model_class
    from phyai_models.pi.model import Savings
    from phyai_models.pi.precision import Precision
    from phyai_models.weights.random import RandomSource
    from phyai_models.weights.writer import SafetensorsWriter

    begun = time.perf_counter()
    folder, partial = given.folder / "checkpoint", given.folder / "checkpoint.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    cameras = {f"observation.images.camera{i}": {"type": "VISUAL", "shape": [3, 224, 224]} for i in range(CAMERAS)}
    settings: dict[str, Any] = {"type": "pi05", "input_features": cameras, "dtype": "bfloat16"}
    if given.tiny:
        settings |= {"image_resolution": [28, 28], "tokenizer_max_length": 32, "chunk_size": 10}
        (partial / "arch.json").write_text(json.dumps(TINY))
    (partial / "config.json").write_text(json.dumps(settings))
    config = PiConfig.load(partial, "pi05")
    scope = Scope(None, torch.device("meta"), "pi05", "", torch.float32, torch.float32)
    model = model_class("pi05")(scope, config, Precision.of(config, None), Savings.none())
    source = RandomSource(0)
    with SafetensorsWriter(partial / "model.safetensors") as writer:
        for spec in model.tensors():
            tensor = torch.empty(spec.shape, dtype=torch.bfloat16, device=given.device)
            source.take(spec.name, tensor)
            writer.add(f"model.{spec.name}", tensor.cpu())
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    gpu = given.device != "cpu"
    tell({
        "bytes": (folder / "model.safetensors").stat().st_size, "seconds": round(time.perf_counter() - begun, 1),
        "about": {
            "device": torch.cuda.get_device_name() if gpu else "CPU", "torch": torch.__version__,
            "libraries": dict(discover().environment(given.device).libraries), "cpus": os.cpu_count(),
            "case": {"cameras": CAMERAS, "prompt_tokens": config.tokenizer_max_length, "steps": STEPS, "batch": 1,
                     "chunk": config.chunk_size, "weights": "random", "samples": SAMPLES, "tiny": given.tiny},
        },
    })  # fmt: skip


def serve(given: argparse.Namespace, name: str, tell: Tell, *, measured: bool) -> None:
    """Load under a preset until the first answer is there; then measure, where that is asked for."""
    import numpy as np
    import torch
    from phyai.engine import DeviceConfig, Engine, EngineArgs, EngineConfig, RuntimeConfig
    from phyai_models.pi05 import PI05Args

    gpu = given.device != "cpu"
    checkpoint = given.folder / "checkpoint"
    out_of_page_cache(checkpoint / "model.safetensors")
    compiled = watch_compiling()
    policy = POLICIES / f"{name if gpu else PRESETS[name]}.yaml"
    runtime = RuntimeConfig("graph" if gpu else "static", (), max_batch=1)
    config = EngineConfig(DeviceConfig(given.device, "bf16" if gpu else "fp32"), runtime=runtime)
    if gpu:
        torch.cuda.init()  # a driver's start is no matter of the preset
        torch.zeros(1, device="cuda")
    begun = time.perf_counter()
    with Engine(EngineArgs("pi05", PI05Args(checkpoint, num_steps=STEPS, seed=0), config), policy=policy) as engine:
        loaded = time.perf_counter()
        runner = engine.model.runner
        inputs = [made_up(runner.config, seed) for seed in range(SAMPLES)]
        prepared = time.perf_counter()
        runner(inputs[0], STEPS)
        ready = time.perf_counter()
        found: dict[str, Any] = {
            "ready_seconds": round(loaded - begun + ready - prepared, 2), "load_seconds": round(loaded - begun, 2),
            "first_answer_seconds": round(ready - prepared, 2), **compiled,
        }  # fmt: skip
        tell(found)
        if not measured:
            return
        found["measured"] = figures(engine, inputs[0])
        tell(found)
        actions = torch.cat([runner(one, STEPS) for one in inputs])
        reference = given.folder / f"{BF16}.npy"
        if name == BF16:
            np.save(reference, actions.numpy(), allow_pickle=False)
        elif reference.exists():
            want = torch.from_numpy(np.load(reference, allow_pickle=False))
            found["measured"]["cosine"] = cosines(actions, want, torch.cat([one.noise for one in inputs]))
        tell(found)


def figures(engine: Any, inputs: Any) -> dict[str, Any]:
    """Time and memory of a step, and who computes it."""
    from collections import Counter

    import attrs
    import torch
    from phyai_models.bench.timing import time_device, time_wall
    from phyai_models.runner import Recording, record

    runner = engine.model.runner
    device, gpu = runner.model.device, runner.model.device.type == "cuda"
    runs = {"warmup": 10 if gpu else 1, "runs": 60 if gpu else 2}
    program = runner.program(inputs, STEPS)
    memory = attrs.asdict(runner.memory())
    if gpu:  # before the stages are recorded beside the whole
        memory |= {"allocated": torch.cuda.memory_allocated(), "peak": torch.cuda.max_memory_allocated()}
    with torch.no_grad():
        stages = {"total": program.recording}
        for stage, compute in program.stages.items():
            graph = record(compute, engine.dispatcher, torch.cuda.graph_pool_handle()) if gpu else Recording(compute)
            stages[stage] = graph
        timed = {stage: attrs.asdict(time_device(one.replay, device, **runs)) for stage, one in stages.items()}
        wall = attrs.asdict(time_wall(lambda: runner(inputs, STEPS), device, **runs))
    chosen = Counter(d.kernel.id for site in engine.dispatcher.report().sites for d in site.decisions if d.kernel)
    return {"step_ms": timed.pop("total"), "stages_ms": timed, "host_to_host_ms": wall, "memory": memory,
            "kernels": dict(chosen.most_common())}  # fmt: skip


def cosines(got: Any, want: Any, noise: Any) -> dict[str, float]:
    """Of the actions of all samples with BF16's: the worst, and the worst without the noise they both began with."""
    from phyai_models.bench.baseline import worst_cosine

    return {
        "worst": worst_cosine(got, want), "worst_without_noise": worst_cosine(got - noise, want - noise),
        "samples": len(got),
    }  # fmt: skip


def made_up(config: Any, seed: int) -> Any:
    """A request of all cameras and a full prompt."""
    import torch
    from phyai_models.bench.made_up import random_inputs

    sizes = {"batch": 1, "cameras": CAMERAS, "prompt": config.tokenizer_max_length}
    return random_inputs(config, torch.Generator().manual_seed(seed), **sizes)


def watch_compiling() -> dict[str, Any]:
    """Kernels that are compiled ahead, and the seconds that it takes, as they come."""
    from phyai.dispatch import Dispatcher

    found: dict[str, Any] = {"compile_seconds": 0.0, "kernels_compiled": 0}
    original = Dispatcher.compile_ahead

    def timed(self: Dispatcher, progress: Any = None) -> None:
        begun = time.perf_counter()
        totals: list[int] = []
        original(self, lambda done, total: totals.append(total))
        found["compile_seconds"] = round(found["compile_seconds"] + time.perf_counter() - begun, 2)
        found["kernels_compiled"] += totals[-1] if totals else 0

    Dispatcher.compile_ahead = timed  # type: ignore[method-assign]
    return found


def out_of_page_cache(path: Path) -> None:
    """Ask the kernel to forget a file's pages, so that it is read from the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
