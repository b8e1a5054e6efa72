"""π0.5 and π0 at full size on one GPU, every case that the documentation quotes, one after another.

    python benchmarks/pi05_gpu.py --out results/ [--quick]

Each case is one ``phyai bench MODEL --random-weights --json``; its record goes to OUT/<model>_<case>.json, and a table
of all of them to stdout.
"""

from __future__ import annotations

import argparse
import io
import json
import shlex
import time
from pathlib import Path
from typing import Any

from phyai.cli.app import main as phyai
from pi05_parts import LAYERS, POLICIES

CASES: dict[str, list[str]] = {
    "3cameras_exact": ["--exact", "--baseline", "torch", "--baseline", "sdpa", "--timeline", "pi05_3cameras.png"],
    "fp8_exact": ["--exact", "--baseline", "torch"],
    "3cameras_bucket": [],
    "3cameras_layers": ["--exact"],
    "2cameras_exact": ["--exact", "--cameras", "2"],
    "2cameras_bucket": ["--cameras", "2"],
    "batch8": ["--batch", "8"],
    "fp8_batch8": ["--batch", "8"],
    "int4_expert_exact": ["--exact", "--baseline", "torch"],
    "prompt48": ["--prompt-tokens", "48"],
    "default_policy": ["--exact"],
    "compiled": ["--exact", "--baseline", "compile", "--compile-seconds", "150"],
    "pi0_exact": ["--exact", "--baseline", "torch"],
    "pi0_bucket": [],
    "pi0_fp8_exact": ["--exact", "--baseline", "torch"],
}
#: Policies of cases whose name speaks of one; all others run under the model's h200_bf16.yaml.
SHIPPED = {
    "fp8_exact": "h200_fp8",
    "fp8_batch8": "h200_fp8",
    "int4_expert_exact": "h200_int4_expert",
    "pi0_fp8_exact": "h200_fp8",
}
QUICK = ("3cameras_exact", "3cameras_bucket", "3cameras_layers")


def arguments(case: str, out: Path) -> list[str]:
    """The command line of a case; pictures go to ``out``."""
    given = [str(out / word) if word.endswith(".png") else word for word in CASES[case]]
    policy = POLICIES / model_of(case) / f"{SHIPPED.get(case, 'h200_bf16')}.yaml"
    if case == "3cameras_layers":
        text, policy = policy.read_text(), out / "layers.yaml"
        policy.write_text(text + LAYERS)
    chosen = [] if case == "default_policy" else ["--policy", str(policy)]
    return ["bench", model_of(case), "--random-weights", *given, *chosen, "--json"]


def model_of(case: str) -> str:
    return "pi0" if case.startswith("pi0_") else "pi05"


def measure(case: str, out: Path) -> dict[str, Any]:
    """Run one case and keep its record, or what it said instead."""
    text = io.StringIO()
    begin = time.perf_counter()
    status = phyai(arguments(case, out), stdout=text)
    found = json.loads(text.getvalue()) if text.getvalue() else {"error": f"exit status {status}"}
    record: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/pi05_gpu.py", "--out", str(out), "--case", case]),
        **found,
    }
    record["seconds"] = round(time.perf_counter() - begin, 1)
    (out / f"{model_of(case)}_{case.removeprefix('pi0_')}.json").write_text(json.dumps(record, indent=1) + "\n")
    return record


def row(case: str, record: dict[str, Any]) -> str:
    """One line of the table."""
    if "stages" not in record:
        return f"{case:16} {record.get('error')}"
    stages = "  ".join(f"{n} {s['p50']:6.2f} ({s['floor']:.2f})" for n, s in record["stages"].items())
    ends = "  ".join(f"{n} {t['p50']:.2f}" for n, t in record["end_to_end"].items())
    line = f"{case:16} {stages}  | {ends}"
    for name, found in record.get("baselines", {}).items():
        line += f"\n{'':16}   baseline {name}: " + json.dumps(found)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="only this case; repeat it")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for case in given.case or (QUICK if given.quick else CASES):
        print(row(case, measure(case, given.out)), flush=True)


if __name__ == "__main__":
    main()
