"""π0.5 at full size under each of its Humming presets, beside BF16: time, memory, how far the actions are, loading.

    python benchmarks/pi05_presets.py --out benchmarks/results/pi05_presets.json --seconds 570 [--preset humming_w4a16]
    python benchmarks/pi05_presets.py --out /tmp/tiny.json --seconds 300 --device cpu --tiny    # the plumbing only

A checkpoint of the published architecture with random bf16 weights (6.7 GB) is written to ``--folder`` once. Then, each
in a process of its own with a time-box, BF16 first:

- with an empty compile cache: seconds from the files to the first answer; the time of a step, by replaying its CUDA
  graph and as a caller sees it, by stages too; memory; the worst of 8 samples' cosine between actions and BF16's, and
  the same without the noise that both begin with;
- with the cache that this left: loading again.

The file is out of the page cache whenever it is loaded. The JSON is written as results come; run again with the same
``--out`` and ``--folder``, what is there is kept and what is missing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
POLICIES = ROOT / "policies" / "pi05"
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=570.0, help="for everything")
    parser.add_argument("--box", type=float, default=150.0, help="seconds for one process")
    parser.add_argument("--preset", action="append", choices=tuple(PRESETS), help="only this one and BF16; repeat it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try this script")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pi05_presets")
    parser.add_argument("--step", nargs=2, metavar=("WHAT", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step is not None:
        return child(given)
    return supervise(given, time.monotonic() + given.seconds)


# The parent


def supervise(given: argparse.Namespace, deadline: float) -> int:
    """Run what is missing, in order of importance, and save after each."""
    given.folder.mkdir(parents=True, exist_ok=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    presets = report.setdefault("presets", {})
    names = [name for name in PRESETS if given.preset is None or name in given.preset or name == BF16]
    jobs = [("checkpoint", None), *(("cold", name) for name in names), *(("warm", name) for name in names)]
    report["not_run"] = []
    for what, name in jobs:
        label = f"{what}:{name}" if name else what
        place = report if name is None else presets.setdefault(name, {})
        if is_there(place, what, name, given.folder):
            continue
        left = deadline - time.monotonic()
        if left < 15:
            report["not_run"].append(label)
            continue
        found = run_child(label, given, min(left - 5, given.box * (1 if name else 2)))
        report |= found.pop("about", {})
        place |= found.pop("measured", {})
        place[what] = found
        print(label, json.dumps(found)[:400], flush=True)
        save(given.out, report)
    save(given.out, report)
    print(table(presets), flush=True)
    return 0 if all("step_ms" in presets.get(name, {}) for name in names) else 1


def is_there(place: Mapping[str, Any], what: str, name: str | None, folder: Path) -> bool:
    """Whether a job's result is there already, and what later ones need of it."""
    if name is None:
        return (folder / "checkpoint" / "model.safetensors").exists()
    kept = (name, what) != (BF16, "cold") or (folder / f"{BF16}.npy").exists()
    return kept and what in place and "problem" not in place[what]


def run_child(label: str, given: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """One process with a time-box; what it found, or what became of it."""
    answer, log = given.folder / "answer.json", given.folder / f"{label.replace(':', '_')}.log"
    answer.unlink(missing_ok=True)
    what, _, name = label.partition(":")
    cache = given.folder / "caches" / (name or "none")
    if what == "cold":
        shutil.rmtree(cache, ignore_errors=True)
    environment = {
        **os.environ, "HUMMING_CACHE_DIR": str(cache / "humming"), "TRITON_CACHE_DIR": str(cache / "triton"),
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    command = [sys.executable, *sys.argv, "--step", label, str(answer)]
    kernels = len(list((cache / "humming").glob("*/kernel.cubin")))
    begun = time.monotonic()
    with log.open("w") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            process.wait(seconds)
            problem = None if process.returncode == 0 else f"status {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            problem = f"not done after {seconds:.0f} s"
    found: dict[str, Any] = json.loads(answer.read_text()) if answer.exists() else {}
    found["kernels_cached_before"] = kernels
    found["process_seconds"] = round(time.monotonic() - begun, 1)
    if problem is not None:
        found["problem"] = f"{problem}: " + " | ".join(log.read_text().strip().splitlines()[-4:])[-1500:]
    return found


def save(out: Path, report: Mapping[str, Any]) -> None:
    partial = out.with_name(f".{out.name}.partial")
    partial.write_text(json.dumps(report, indent=1) + "\n")
    os.replace(partial, out)


def table(presets: Mapping[str, Any]) -> str:
    """The figures of every preset in a line."""
    lines = [f"{'preset':20} {'step ms':>8} {'x bf16':>7} {'weights GB':>11} {'cosine':>8} {'no noise':>9} "
             f"{'load cold s':>12} {'warm s':>7}"]  # fmt: skip
    base = presets.get(BF16, {}).get("step_ms", {}).get("p50")
    for name, found in presets.items():
        if "step_ms" not in found:
            lines.append(f"{name:20} {found.get('cold', {}).get('problem', 'not run')[:90]}")
            continue
        step, cosine = found["step_ms"]["p50"], found.get("cosine", {})
        cold, warm = (found.get(what, {}).get("ready_seconds", float("nan")) for what in ("cold", "warm"))
        faster = base / step if base else float("nan")
        lines.append(
            f"{name:20} {step:8.2f} {faster:7.2f} {found['memory']['parameters'] / 1e9:11.2f} "
            f"{cosine.get('worst', 1.0):8.5f} {cosine.get('worst_without_noise', 1.0):9.5f} {cold:12.1f} {warm:7.1f}"
        )
    return "\n".join(lines)


# A process of its own


def child(given: argparse.Namespace) -> int:
    what, _, name = given.step[0].partition(":")
    answer = Path(given.step[1])

    def tell(found: Mapping[str, Any]) -> None:
        save(answer, found)

    if what == "checkpoint":
        write_checkpoint(given, tell)
    else:
        serve(given, name, tell, measured=what == "cold")
    return 0


def write_checkpoint(given: argparse.Namespace, tell: Any) -> None:
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


def serve(given: argparse.Namespace, name: str, tell: Any, *, measured: bool) -> None:
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
    from phyai_models.pi.inputs import Inputs

    g = torch.Generator().manual_seed(seed)
    size, slots = config.vision.image_size, config.tokenizer_max_length
    return Inputs(
        images=torch.rand(1, len(config.cameras), 3, size, size, generator=g) * 2 - 1,
        camera_mask=torch.ones(1, len(config.cameras), dtype=torch.bool),
        tokens=torch.randint(0, config.vocab_size, (1, slots), generator=g),
        token_mask=torch.ones(1, slots, dtype=torch.bool),
        state=torch.rand(1, config.max_state_dim, generator=g) * 2 - 1,
        noise=torch.randn(1, config.chunk_size, config.max_action_dim, generator=g),
    )


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
    sys.exit(main())
