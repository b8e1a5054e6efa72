"""All Humming rows at π0.5's projections: µs by graph replay, weights cold, beside cuBLAS and torch's scaled product.

    python benchmarks/humming_gemm.py --count [--cores 16]                    # what it compiles; needs no GPU
    python benchmarks/humming_gemm.py --out benchmarks/results/humming_gemm.json --budget 500
    python benchmarks/humming_gemm.py --out more.json --done benchmarks/results/humming_gemm.json --budget 500

For every (layer, M): every row with the inputs' quantization inside it; the library's own launch of the same kernel on
the same weights, with that quantization and without (nothing of ours around it), in turns with ours; cuBLAS bf16;
``torch._scaled_mm`` with fp8 codes made beforehand. What is most important comes first (``humming_plan.py``); kernels
compile on all cores while others are measured. After ``--budget`` seconds it stops and lists what was not run.

The measuring runs in a process of its own, which is started again without what it was at when a kernel takes it down
or hangs. The JSON is written as results come. ``humming_map.py`` draws it and writes a policy from it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from humming_plan import M, Unit, count, units
from phyai.files.replacing import replacing

#: Seconds without a sign of life after which the measuring process is taken to hang.
PATIENCE = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", type=float, default=500.0, help="seconds in all")
    parser.add_argument("--m", nargs="*", type=int, default=list(M))
    parser.add_argument("--layers", nargs="*", help="only these (expert.down, ...)")
    parser.add_argument(
        "--done", type=Path, action="append", default=[], help="an earlier JSON: its cells are left out"
    )
    parser.add_argument("--count", action="store_true", help="say how many kernels there are to compile, and stop")
    parser.add_argument("--cores", type=int, default=16, help="for --count")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    wanted = selected(given)
    if given.count:
        print(count(wanted, given.cores))
        return 0
    if given.worker is not None:
        from humming_measure import work

        return work(wanted, given.worker, time.time() + given.budget)
    if given.out is None:
        parser.error("--out says where results go")
    return supervise(wanted, given.out, time.time() + given.budget)


def selected(given: argparse.Namespace) -> list[Unit]:
    """The units that are asked for, without what was measured before."""
    done = {
        (r["layer"], r["M"], r.get("unit", r["scheme"]))
        for path in given.done for r in json.loads(path.read_text())["results"] if "us" in r
    }  # fmt: skip
    found = []
    for unit in units(given.m):
        rows = tuple(m for m in unit.rows if (unit.layer, m, unit.scheme) not in done)
        if rows and (given.layers is None or unit.layer in given.layers):
            found.append(Unit(unit.stage, unit.layer, unit.scheme, rows))
    return found


def supervise(wanted: Sequence[Unit], out: Path, deadline: float) -> int:
    """Run the measuring process until everything is done or time is up, and write what it says to ``out``."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        events, log = Path(folder) / "events.jsonl", out.with_suffix(".log")
        log.write_text("")
        problems: list[str] = []
        while (left := deadline - time.time()) > 10:
            command = [sys.executable, *sys.argv, "--worker", str(events), "--budget", str(left)]
            with log.open("a") as said:
                process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
                ended = _watch(process, events, deadline + 20, lambda: save(out, wanted, events, problems))
            if process.returncode == 0:
                break
            at = _running(events)
            why = ended or f"ended with status {process.returncode}"
            problems.append(f"the measuring process {why} at {at or 'its start'}; {log.name} has what it said")
            if at is None:
                break
        report = save(out, wanted, events, problems)
    print(json.dumps(report["summary"], indent=1))
    print(f"{len(report['not_run'])} units were not run" + "".join(f"\n  {name}" for name in report["not_run"]))
    return 0 if report["results"] else 1


def _watch(process: subprocess.Popen[bytes], events: Path, deadline: float, save_: Any) -> str | None:
    """Wait for the process, saving meanwhile; what was wrong if it had to be ended."""
    alive = time.time()
    size = -1
    while process.poll() is None:
        time.sleep(1.0)
        now = events.stat().st_size if events.exists() else 0
        if now != size:
            size, alive = now, time.time()
            save_()
        if time.time() - alive > PATIENCE or time.time() > deadline:
            os.killpg(process.pid, signal.SIGKILL)  # the compilers that it started, too
            process.wait()
            return "hung" if time.time() <= deadline else "did not stop when time was up"
    return None


def read(events: Path) -> list[dict[str, Any]]:
    if not events.exists():
        return []
    lines = events.read_text().splitlines()
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:  # the last one, half written when the process ended
            continue
    return found


def _running(events: Path) -> str | None:
    """The unit that was begun and not ended."""
    said = read(events)
    ended = {e["end"] for e in said if "end" in e}
    return next((e["begin"] for e in reversed(said) if "begin" in e and e["begin"] not in ended), None)


def save(out: Path, wanted: Sequence[Unit], events: Path, problems: Sequence[str]) -> dict[str, Any]:
    said = read(events)
    results = [e["result"] for e in said if "result" in e]
    begun = {e["begin"] for e in said if "begin" in e}
    ended = {e["end"] for e in said if "end" in e}
    report: dict[str, Any] = {"command": shlex.join(["python", "benchmarks/humming_gemm.py", *sys.argv[1:]])}
    for event in said:
        report |= event.get("about", {})
    report |= {
        "summary": summary(results), "problems": list(problems),
        "not_run": [u.name for u in wanted if u.name not in begun],
        "unfinished": [u.name for u in wanted if u.name in begun - ended],
        "results": results,
    }  # fmt: skip
    with replacing(out) as file:
        file.write((json.dumps(report, indent=1) + "\n").encode())
    return report


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How our path compares with the library's launch of the same work, and what failed."""
    ratios = sorted((r["us"] / r["library_us"], r["layer"], r["M"], r["scheme"]) for r in results if "library_us" in r)
    errors = [r for r in results if "problem" in r]
    found: dict[str, Any] = {"cells": len(results), "failed": len(errors)}
    if ratios:
        found["ours over the library's launch"] = {
            "median": round(statistics.median(ratio for ratio, *_ in ratios), 4),
            "at most 1.03": f"{sum(ratio <= 1.03 for ratio, *_ in ratios)} of {len(ratios)}",
            "worst": [[round(ratio, 4), *where] for ratio, *where in ratios[-5:]],
        }
        found["largest relative error"] = max(r.get("error", 0.0) for r in results)
    return found


if __name__ == "__main__":
    sys.exit(main())
