"""Every row has a measured time beside its floor in ``benchmarks/results``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phyai_backend_cuda.records import KERNELS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def figures(data: Any) -> Iterator[dict[str, Any]]:
    """Everything in a record that names a kernel; tables of columns and rows as such."""
    if isinstance(data, list):
        for value in data:
            yield from figures(value)
    elif isinstance(data, dict):
        if "columns" in data:
            data = [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]
            yield from figures(data)
            return
        if "kernel" in data:
            yield data
        for value in data.values():
            yield from figures(value)


def test_every_row_has_a_measured_time_beside_its_floor() -> None:
    measured = {
        figure["kernel"].split(" ")[0]
        for file in sorted(RESULTS.glob("*.json"))
        for figure in figures(json.loads(file.read_text(encoding="utf-8")))
        if figure.get("us") and figure.get("floor_us")
    }
    assert {kernel.id for kernel in KERNELS} - measured == set()
