"""Compiled kernels of one layer, by the number of rows.

A compiled kernel computes any number of rows; which is quickest depends on it. So one kernel is compiled for each of
a few numbers (those that share a configuration share the kernel), and a call takes that of the next larger one.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from phyai_backend_humming.library import LOCK, library

_log = logging.getLogger("phyai.humming")

#: Where nothing is known of the calls to come; of these, those that can come where something is.
DEFAULT_ROWS: tuple[int, ...] = (16, 64, 256, 1024, 4096)
#: The one schedule where a row's sum may not depend on the others.
INVARIANT_ROWS: tuple[int, ...] = (64,)


@attrs.frozen(eq=False)
class Schedules:
    """``configs[i]`` launches the kernel for up to ``rows[i]`` rows; the last one serves any number above."""

    rows: tuple[int, ...]
    configs: tuple[torch.Tensor, ...]

    def index(self, m: int) -> int:
        return min(bisect_left(self.rows, m), len(self.rows) - 1)


def rows_within(bounds: tuple[int, int] | None) -> tuple[int, ...]:
    """The numbers of rows to compile for where calls have between ``bounds`` of them.

    >>> rows_within((50, 50)), rows_within((50, 400)), rows_within(None)
    ((50,), (50, 64, 256, 400), (16, 64, 256, 1024, 4096))
    """
    if bounds is None:
        return DEFAULT_ROWS
    low, high = (max(1, bound) for bound in bounds)
    return tuple(sorted({low, high, *(m for m in DEFAULT_ROWS if low < m < high)}))


def specifications(
    config: Any, rows: Sequence[int], *, invariant: bool, device: int
) -> list[tuple[dict[str, Any], int]]:
    """For each number of rows what the library compiles, and how many multiprocessors it launches on (0: all)."""
    compute = {"use_batch_invariant": invariant, "gemm_type": "dense"}
    found = []
    for m in rows:
        tuning = dict(library().heuristics(config, m, use_batch_invariant=invariant, gemm_type="dense", device=device))
        count = tuning.pop("num_sms", 0)
        found.append(({**config.to_dict(), **compute, **tuning}, count))
    return found


def compile_schedules(config: Any, rows: Sequence[int], *, invariant: bool, device: int) -> Schedules:
    """Compile (or find compiled, in this process or in the library's cache on disk) what ``rows`` need, in parallel."""
    started = time.perf_counter()
    ordered = tuple(sorted(set(rows)))
    kind = library().HummingKernel
    with LOCK:
        wanted = specifications(config, ordered, invariant=invariant, device=device)
        distinct = unique([spec for spec, _ in wanted])
        kernels = dict(
            zip(distinct, kind.compile_many([(kind, spec) for spec in distinct.values()], device), strict=True)
        )
    configs = tuple(torch.tensor([kernels[key_of(spec)].kernel_id, count], dtype=torch.int64) for spec, count in wanted)
    seconds = time.perf_counter() - started
    _log.info("N=%d K=%d: %d kernels in %.1f s", config.shape_n, config.shape_k, len(distinct), seconds)
    return Schedules(ordered, configs)


def unique(specs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The specifications that differ, by key, in their order."""
    return {key_of(spec): spec for spec in specs}


def key_of(spec: dict[str, Any]) -> str:
    return repr(sorted((name, str(value)) for name, value in spec.items()))
