"""FP8 products of π0.5's prefix and vision: µs in a CUDA graph, cold weights, beside BF16 and the floor.

    python benchmarks/gpu_fp8.py --out benchmarks/results/rows_fp8.json [--only gated blocks]

``gpu_table.py`` says how they are timed, and what the floor is. ``error`` is the relative error in the Frobenius norm
against float32: of a product for the very same codes, of a block for the weights and inputs before they were quantized.

Sections that compile, or that a wrong kernel could take down, run in processes of their own with a time-box; what fails
is recorded, and the rest goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import torch
from gpu_fp8_blocks import blocks, gated
from gpu_fp8_products import flashinfer, gemms, humming, passes, patches, shapes
from gpu_table import Table, sections_parser, timed_section

#: Sections, the most wanted first.
SECTIONS: Mapping[str, Callable[[Table], None]] = {
    "gated": gated, "blocks": blocks, "gemms": gemms, "shapes": shapes, "patches": patches, "passes": passes,
    "humming": humming, "flashinfer": flashinfer,
}  # fmt: skip
#: Those with processes of their own, and seconds for each.
APART = {"gated": 45.0, "humming": 30.0, "flashinfer": 30.0}


def apart(table: Table, section: str, seconds: float) -> None:
    """A section in a process of its own; its rows, and what became of it."""
    out = table.out.with_name(f"{table.out.stem}_{section}.json")
    out.unlink(missing_ok=True)
    seconds = min(seconds, table.deadline - time.monotonic())
    if seconds < 5:
        table.add({"section": section, "problem": "not measured: the time was up"})
        return
    command = [sys.executable, __file__, "--out", str(out), "--only", section, "--here", "--seconds", f"{seconds - 3}"]
    begun = time.perf_counter()
    try:
        done = subprocess.run(command, timeout=seconds, capture_output=True, text=True)
        problem = "" if done.returncode == 0 else done.stderr.strip()[-400:]
    except subprocess.TimeoutExpired:
        problem = f"not done after {seconds:.0f} s"
    for row in json.loads(out.read_text())["rows"] if out.exists() else []:
        table.add(row)
    out.unlink(missing_ok=True)
    row = {"section": section, "seconds": round(time.perf_counter() - begun, 1)}
    table.add(row | ({"problem": problem} if problem else {}))


def main() -> None:
    parser = sections_parser(__doc__, SECTIONS)
    parser.add_argument("--here", action="store_true", help="run every section in this process")
    given = parser.parse_args()
    table = Table(given.out, time.monotonic() + given.seconds)
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in given.only:
        if name in APART and not given.here:
            apart(table, name, APART[name])
        else:
            timed_section(table, name, SECTIONS[name])


if __name__ == "__main__":
    main()
