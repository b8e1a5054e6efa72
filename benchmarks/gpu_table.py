"""What scripts that time rows share: fresh calls of a row timed in one graph, the table of figures, and its sections.

Every figure is the time of one call among 40 in one CUDA graph, each with its own inputs and weights, so that a product
finds its weights in memory and not in L2; the median of 20 replays. ``floor_us`` is the larger of bytes at 4.25 TB/s
and, for products, FLOPs at what 8192³ reaches (793 TFLOP/s in BF16, 1,492 in FP8).
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from gpu_parts import BANDWIDTH, CALLS, command_of, microseconds, resources
from phyai.facts import Facts
from phyai.kernel import Kernel, Prepared

BF16_RATE, FP8_RATE = 793e12, 1492e12


class Table:
    """Collects figures and writes them as they come; measures nothing any more after ``deadline``. A row that fails is
    recorded and the rest goes on."""

    def __init__(self, out: Path, deadline: float = math.inf) -> None:
        self.out, self.deadline = out, deadline
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        command = command_of(sys.argv)
        report = {"command": command, "device": device, "torch": torch.__version__, "rows": self.rows}
        self.out.write_text(json.dumps(report, indent=1) + "\n")

    def time(
        self, what: str, who: str, floor: float, make: Callable[[], Callable[[], Any]],
        error: Callable[[], float] | None = None, calls: int = CALLS,
    ) -> None:  # fmt: skip
        """``make`` gives a fresh call; ``error`` says how wrong one is. ``floor`` is in seconds."""
        row: dict[str, Any] = {"call": what, "kernel": who, "floor_us": round(floor * 1e6, 2)}
        if time.monotonic() > self.deadline:
            self.add(row | {"problem": "not measured: the time was up"})
            return
        try:
            if error is not None:
                row["error"] = float(f"{error():.3g}")
            row["us"] = microseconds([make() for _ in range(calls)])
        except Exception as problem:
            row["problem"] = f"{type(problem).__name__}: {problem}"[:300]
        torch.cuda.empty_cache()
        self.add(row)


class Rows(Table):
    """Figures of the catalog's rows, and of what is beside them: of ``nbytes`` and, in 16 bits, ``flops``."""

    def row(
        self, what: str, id: str, nbytes: float, facts: Mapping[str, Any],
        make: Callable[[], tuple[dict[str, Any], tuple]], params: Mapping[str, Any] = {}, flops: float = 0.0,
    ) -> None:  # fmt: skip
        """``make`` gives the weights and the inputs of a fresh call."""

        def call() -> Callable[[], Any]:
            weights, inputs = make()
            return bind(prepared(id, facts, weights, params).run, *inputs)

        self.plain(what, id + ("" if not params else f" {dict(params)}"), nbytes, call, flops)

    def plain(
        self, what: str, who: str, nbytes: float, make: Callable[[], Callable[[], Any]], flops: float = 0.0
    ) -> None:
        self.time(what, who, floor_of(nbytes, flops, BF16_RATE), make)


def sections_parser(doc: str | None, sections: Mapping[str, Callable[[Table], None]]) -> argparse.ArgumentParser:
    """The arguments of a script whose table has ``sections``."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(sections), choices=sections)
    parser.add_argument("--seconds", type=float, default=120.0, help="for everything")
    return parser


def timed_section(table: Table, name: str, section: Callable[[Table], None]) -> None:
    """Fill in one section, and how long it took; one that breaks off is recorded and the rest goes on."""
    begun = time.perf_counter()
    try:
        section(table)
    except Exception as problem:
        table.add({"section": name, "problem": f"{type(problem).__name__}: {problem}"[:300]})
    table.add({"section": name, "seconds": round(time.perf_counter() - begun, 1)})


def floor_of(nbytes: float, flops: float = 0.0, rate: float = FP8_RATE) -> float:
    return max(nbytes / BANDWIDTH, flops / rate)


@functools.cache
def kernels() -> Mapping[str, Kernel]:
    from phyai_backend_cuda.records import KERNELS as OURS
    from phyai_backend_flashinfer.rows import KERNELS as FLASHINFER
    from phyai_backend_reference.rows.torch import KERNELS as TORCH
    from phyai_backend_reference.rows.torch_attention import KERNELS as ATTENTION

    return {kernel.id: kernel for kernel in (*OURS, *FLASHINFER, *TORCH, *ATTENTION)}


def prepared(
    id: str, facts: Mapping[str, Any], weights: Mapping[str, Any], params: Mapping[str, Any] | None = None
) -> Prepared:
    return kernels()[id].load()(Facts(facts), weights, params or {}, resources())


def bind(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: function(*arguments)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def weight(n: int, k: int) -> torch.Tensor:
    return normal(n, k) * k**-0.5
