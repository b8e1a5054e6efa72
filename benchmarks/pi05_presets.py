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

from pi05_presets_step import BF16, PRESETS, save


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=570.0, help="for everything")
    parser.add_argument("--box", type=float, default=150.0, help="seconds for one process")
    parser.add_argument("--preset", action="append", choices=tuple(PRESETS), help="only this one and BF16; repeat it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try this script")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pi05_presets")
    given = parser.parse_args()
    return supervise(given, time.monotonic() + given.seconds)


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
    step = str(Path(__file__).with_name("pi05_presets_step.py"))
    command = [sys.executable, step, label, str(answer), "--folder", str(given.folder), "--device", given.device]
    command += ["--tiny"] * given.tiny
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


if __name__ == "__main__":
    sys.exit(main())
