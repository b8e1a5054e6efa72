"""What benchmark scripts share: parts in processes of their own, timing in a CUDA graph, a report of what came."""

from __future__ import annotations

import argparse
import functools
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from phyai.dispatch.resources import EngineResources
from phyai.environment import Device

CALLS, BANDWIDTH = 40, 4.25e12
LIMIT_S = 150  # of a part


@functools.cache
def resources() -> EngineResources:
    """What an engine lends, to all rows that one process times."""
    return EngineResources(Device("cuda"))


def command_of(argv: Sequence[str]) -> str:
    """The command of a script of this folder, as its readers type it.

    >>> command_of(["/home/me/benchmarks/gpu_rows.py", "--out", "rows.json"])
    'python benchmarks/gpu_rows.py --out rows.json'
    """
    return shlex.join(["python", f"benchmarks/{Path(argv[0]).name}", *argv[1:]])


class Report:
    """Figures, one JSON line each as they come."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def attempt(self, kind: str, what: Mapping[str, Any], call: Callable[[], Mapping[str, Any]]) -> None:
        row = {"kind": kind, **{name: str(v) if isinstance(v, torch.dtype) else v for name, v in what.items()}}
        try:
            row.update(call())
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {error}"[:400]
        print(json.dumps(row), flush=True)
        with self.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


def microseconds(calls: Sequence[Callable[[], Any]]) -> float:
    """Of one of ``calls``, which are captured in one graph: the median of 20 replays."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(23):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return round(sorted(times[3:])[10] * 1e3 / len(calls), 2)


def _compile(task: tuple[str, dict[str, int]]) -> str | None:
    from phyai_backend_cuda.runtime.nvrtc import compile_cubin

    try:
        compile_cubin(task[0], task[1], "sm_90a")
    except RuntimeError as error:
        return f"{task}: {error}"[-1500:]
    return None


def compiled(pool: ProcessPoolExecutor, name: str, defines: Sequence[dict[str, int]]) -> None:
    """Fill the cache of cubins, side by side."""
    for problem in filter(None, pool.map(_compile, [(name, d) for d in defines])):
        print(problem, flush=True)


def joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``new``, and behind its rows those of ``old`` that are of kinds of which ``new`` has none, with their command.

    >>> same = {"device": "H200", "torch": "2.11"}
    >>> old = {**same, "command": "a", "rows": [{"kind": "check", "n": 1}, {"kind": "time", "n": 2}]}
    >>> new = {**same, "command": "b", "rows": [{"kind": "time", "n": 3}]}
    >>> joined(old, new)["rows"], joined(old, new)["earlier"]
    ([{'kind': 'time', 'n': 3}, {'kind': 'check', 'n': 1}], {'check': 'a'})
    """
    kinds = {row["kind"] for row in new["rows"]}
    kept = [row for row in old["rows"] if row["kind"] not in kinds]
    earlier = {row["kind"]: old.get("earlier", {}).get(row["kind"], old["command"]) for row in kept}
    return {**new, "earlier": earlier, "rows": [*new["rows"], *kept]}


def main_of(
    parser: argparse.ArgumentParser, parts: Mapping[str, Callable[[Report], None]],
    ahead: Callable[[ProcessPoolExecutor], None],
) -> None:  # fmt: skip
    """Each part in a process of its own, so that one that breaks the device does not take the others down.

    With ``--only``, what the report at ``--out`` has of other kinds stays, if the same device and torch made it.
    """
    parser.add_argument("--out", type=Path, required=True, help="where the report goes, JSON")
    parser.add_argument("--only", nargs="*", default=list(parts), choices=list(parts))
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    lines = arguments.out.with_suffix(".jsonl")
    if arguments.part:
        torch.manual_seed(0)
        parts[arguments.part](Report(lines))
        return
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    lines.unlink(missing_ok=True)
    made_by = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    partly = set(arguments.only) != set(parts)
    old = json.loads(arguments.out.read_text()) if partly and arguments.out.exists() else None
    if old and any(old[name] != made_by[name] for name in made_by):
        parser.error(f"{arguments.out} is of {old['device']}, torch {old['torch']}; give another --out")
    begun = time.monotonic()
    with ProcessPoolExecutor(14) as pool:
        ahead(pool)
    print(f"compiled in {time.monotonic() - begun:.1f} s", flush=True)
    broken = []
    for part in arguments.only:
        command = [sys.executable, sys.argv[0], "--out", str(arguments.out), "--part", part]
        try:
            code = subprocess.run(command, timeout=LIMIT_S, check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
        if code:
            broken.append({"part": part, "code": code})
    rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    report = {
        "command": command_of(sys.argv), **made_by,
        "seconds": round(time.monotonic() - begun), "broken": broken, "rows": rows,
    }  # fmt: skip
    if old:
        report = joined(old, report)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    lines.unlink(missing_ok=True)
