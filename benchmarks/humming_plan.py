"""What ``humming_gemm.py`` measures, in what order, and what that compiles: no GPU is asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from humming_rows import LAYERS, SCHEMES, specifications_of

M = (1, 10, 50, 64, 200, 256, 816, 968, 1024, 4096)
#: The projections of each tower by their share of its time, and the numbers of rows that its calls have: one request
#: with one to four cameras, chunks of 10 and 50 actions, a few requests together.
TOWERS: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "expert": (("gate_up", "down", "qkv", "o"), (50, 10, 64, 200, 256)),
    "prefix": (("gate_up", "down", "qkv", "o"), (968, 816, 1024, 256)),
    "vision": (("fc1", "fc2", "qkv", "o"), (816, 256, 1024, 968)),
    "head": (("action_in", "action_out", "time"), (50, 10)),
}
#: A second scheme of a row that another one stands for already.
VARIANTS = ("w4a16 g128 zp", "fp8_a8 block128")
BASELINES = "baselines"
#: Seconds of one core for a kernel, by the bits of the inputs (nvcc 13.0).
CORE_SECONDS = {16: 4.5, 8: 2.5}


@attrs.frozen
class Unit:
    """What is measured together: one scheme (or what it is compared with) at one layer, for some numbers of rows."""

    stage: str
    layer: str
    scheme: str
    rows: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.stage}: {self.layer} {self.scheme} M={','.join(map(str, self.rows))}"

    def specifications(self) -> dict[str, dict[str, Any]]:
        """What the library compiles for it."""
        if self.scheme == BASELINES:
            return {}
        return specifications_of(SCHEMES[self.scheme][1], *LAYERS[self.layer], self.rows)


def fits(layer: str, scheme: str) -> bool:
    """Whether the row of a scheme takes a layer."""
    given = SCHEMES[scheme][1].input
    return given is None or not given.group_size or LAYERS[layer][1] % given.group_size == 0


def units(rows: Sequence[int] = M) -> Iterator[Unit]:
    """Everything, the most important first: every row at the numbers of rows that each tower has, tower by tower;
    the other numbers; the second schemes of rows; the heads."""
    main = [scheme for scheme in SCHEMES if scheme not in VARIANTS]
    towers = [tower for tower in TOWERS if tower != "head"]
    for tower in towers:
        yield from _layers(tower, f"1 {tower}", main, [m for m in TOWERS[tower][1] if m in rows], baselines=True)
    for tower in towers:
        others = [m for m in rows if m not in TOWERS[tower][1]]
        yield from _layers(tower, f"2 {tower}, other M", main, others, baselines=True)
    for tower in towers:
        yield from _layers(tower, f"3 {tower}, other schemes", VARIANTS, rows, baselines=False)
    yield from _layers("head", "4 head", list(SCHEMES), rows, baselines=True)


def _layers(tower: str, stage: str, schemes: Sequence[str], rows: Sequence[int], *, baselines: bool) -> Iterator[Unit]:
    if not rows:
        return
    for part in TOWERS[tower][0]:
        layer = f"{tower}.{part}"
        if baselines:
            yield Unit(stage, layer, BASELINES, tuple(rows))
        for scheme in schemes:
            if fits(layer, scheme):
                yield Unit(stage, layer, scheme, tuple(rows))


def count(wanted: Sequence[Unit], cores: int) -> str:
    """How many kernels each stage adds, and about how long they take to compile; for an H200 that is not here."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "phyai-backend-humming" / "tests"))
    from simulated_humming import simulated

    seen: set[str] = set()
    stages: dict[str, list[float]] = {}
    with simulated(90):
        for unit in wanted:
            new = unit.specifications().keys() - seen
            seen |= new
            scheme = SCHEMES.get(unit.scheme)
            bits = 8 if scheme is not None and scheme[1].input is not None else 16
            total = stages.setdefault(unit.stage, [0, 0, 0.0])
            total[0] += len(unit.rows)
            total[1] += len(new)
            total[2] += len(new) * CORE_SECONDS[bits]
    wall = f"s on {cores} cores"
    lines = [f"{'stage':28} {'cells':>6} {'kernels':>8} {'core s':>8} {wall:>14} {'in all':>7}"]
    so_far = 0.0
    for stage, (cells, kernels, seconds) in stages.items():
        so_far += seconds / cores
        lines.append(f"{stage:28} {cells:6.0f} {kernels:8.0f} {seconds:8.0f} {seconds / cores:14.0f} {so_far:7.0f}")
    lines.append(f"{len(seen)} kernels for {len(SCHEMES)} schemes x {len(LAYERS)} layers x {len(M)} numbers of rows")
    return "\n".join(lines)
