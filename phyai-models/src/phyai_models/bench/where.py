"""Where the time of a stage goes: its calls by kind, site and kernel, each beside its floor."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import torch
from phyai.dispatch import Dispatcher

from phyai_models.bench.floor import Case, Ceilings, Work
from phyai_models.bench.tape import Call, Tape, record_tape
from phyai_models.bench.timeline import Span, kind_of, profile, totals
from phyai_models.bench.work import PRODUCTS, work_of

#: What an op is, where its kernel's name does not tell.
KINDS = {
    **dict.fromkeys(PRODUCTS, "product"), "attention": "attention", "attention_paged": "attention", "rope": "rope",
    "kv_write": "rope", "expert_steps": "expert", "activation": "activation", "gated_activation": "activation",
    "gated_residual": "residual", "transformer_encoder": "product",
}  # fmt: skip
_RUNS = 3  # on a CPU, of which the quickest counts: another process may have it meanwhile
_MARK = "spin_kernel"  # what torch.cuda._sleep launches

COLUMNS = ("kind", "role", "op", "kernel", "size", "calls", "kernels", "us", "floor_us", "ceiling")


@attrs.frozen
class Timed:
    """A call of a pass: what it is, the kernels that it launched, and the least that it does."""

    kind: str
    role: str
    op: str
    kernel: str
    size: str
    spans: Sequence[Span]
    work: Work


@attrs.frozen
class Row:
    """Calls of one kernel at sites of one role, with the same sizes. ``kernels`` are launches, ``us`` microseconds, all
    calls together; ``floor_us`` is the least that their products, attention and weights take under the ``ceiling`` (the
    types of the products, or memory), None where that was not measured."""

    kind: str
    role: str
    op: str
    kernel: str
    size: str
    calls: int
    kernels: int
    us: float
    floor_us: float | None
    ceiling: str


@attrs.frozen
class StageProfile:
    """Where the time of a stage goes: its calls, and all its kernels, ``spans``. ``in_place``: the calls' times are
    from there."""

    calls: Sequence[Timed]
    spans: Sequence[Span]
    in_place: bool

    @property
    def work(self) -> Work:
        """The least that the stage does. What leads into the expert and out of it is not part of it."""
        return sum((call.work for call in self.calls if call.role != "head"), Work())

    def types(self) -> set[str]:
        """The types that it computes in."""
        return {dtype for call in self.calls for dtype in call.work.flops}

    def record(self, ceilings: Ceilings, milliseconds: float) -> dict[str, Any]:
        """By kernel, by site, by kind, as plain data, of a stage that takes so long.

        A launch that begins before the one in front has ended counts from its beginning: kernels may add up to more
        than ``kernel_ms``, the time in which any of them ran.
        """
        rows, busy = rows_of(self.calls, ceilings), covered(self.spans) / 1e3
        return {
            "kernels": len(self.spans), "kernel_ms": busy, "gap_ms": milliseconds - busy,
            "by_kind": by_kind(self.calls, rows),
            "by_site": {"timed": "in the graph" if self.in_place else "call by call", **table(rows)},
            "by_kernel": {"columns": ("name", "launches", "us"), "rows": totals(self.spans)},
        }  # fmt: skip


def covered(spans: Iterable[Span]) -> float:
    """Microseconds in which at least one kernel ran.

    >>> covered([Span("a", 0.0, 2.0), Span("b", 1.0, 3.0), Span("c", 1.5, 1.0), Span("d", 5.0, 1.0)])
    5.0
    """
    total, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.begin):
        end = span.begin + span.length
        total += max(0.0, end - max(span.begin, until))
        until = max(until, end)
    return total


def profile_stage(
    stage: Callable[[], None], replay: Callable[[], object], dispatcher: Dispatcher, device: torch.device, case: Case
) -> StageProfile:
    """Run a stage, whose calls must have been decided, to see its calls, and replay its recording to time them."""
    tape = record_tape(stage, dispatcher)
    each, spans, in_place = spans_of(tape, replay, device)
    calls = [_timed(call, own, case) for call, own in zip(tape.calls, each, strict=True)]
    return StageProfile(calls, spans, in_place)


def rows_of(calls: Sequence[Timed], ceilings: Ceilings) -> list[Row]:
    """One row for every kind of call, the longest first."""
    found: dict[tuple[str, str, str, str, str, str], list[Timed]] = {}
    for call in calls:
        if call.spans:
            ceiling = ", ".join(call.work.limits(ceilings))
            found.setdefault((call.kind, call.role, call.op, call.kernel, call.size, ceiling), []).append(call)
    rows = [
        Row(
            kind, role, op, kernel, size, calls=len(each), kernels=sum(len(call.spans) for call in each),
            us=round(sum(span.length for call in each for span in call.spans), 3),
            floor_us=_added(_microseconds(call.work, ceilings) for call in each), ceiling=ceiling,
        )
        for (kind, role, op, kernel, size, ceiling), each in found.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -row.us)


def by_kind(calls: Sequence[Timed], rows: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    """Launches and microseconds of every kind of kernel, and the floor of the calls of that kind, None where that is
    not known. A call that is a product and more counts by its kernels, its floor with the products."""
    lengths: dict[str, list[float]] = {}
    for call in calls:
        for span in call.spans:
            kind = kind_of(span.name)
            lengths.setdefault(call.kind if kind == "other" else kind, []).append(span.length)
    floors: dict[str, list[float | None]] = {}
    for row in rows:
        if row.floor_us != 0:
            floors.setdefault(row.kind, []).append(row.floor_us)
    kinds = dict.fromkeys((*sorted(lengths, key=lambda kind: -sum(lengths[kind])), *floors))
    return {
        kind: {
            "kernels": len(lengths.get(kind, ())), "us": round(sum(lengths.get(kind, ())), 3),
            "floor_us": _added(floors.get(kind, ())),
        }
        for kind in kinds
    }  # fmt: skip


def _microseconds(work: Work, ceilings: Ceilings) -> float | None:
    seconds = work.seconds(ceilings)
    return None if seconds is None else seconds * 1e6


def _added(floors: Iterable[float | None]) -> float | None:
    """The sum of microseconds; None where one of them is not known."""
    total = 0.0
    for floor in floors:
        if floor is None:
            return None
        total += floor
    return round(total, 3)


def _timed(call: Call, spans: Sequence[Span], case: Case) -> Timed:
    if call.site is None:
        return Timed("between", "", "", call.name, "", spans, Work())
    facts, op = call.site.facts_of_call(call.args), call.site.op
    sizes = ((dim.name, facts.get(f"shape.{dim.name}")) for dim in op.dims)
    size = " ".join(f"{name}={value}" for name, value in sizes if value is not None)
    kind = KINDS.get(op.name, "norm" if "norm" in op.name else "other")
    return Timed(kind, str(facts.get("role") or ""), op.name, call.name, size, spans, work_of(call, case))


# Times of the calls on a tape


def spans_of(
    tape: Tape, replay: Callable[[], object], device: torch.device
) -> tuple[list[list[Span]], list[Span], bool]:
    """The kernels of every call of ``tape``, all kernels of ``replay``, which makes the same calls, and whether the
    former's times are from there.

    On a GPU the tape is played once with a mark between its calls, which says how many kernels each has; where the
    replayed graph has the same ones, the times are the graph's. On a CPU calls are timed by the clock, and of some runs
    the quickest counts.
    """
    if device.type != "cuda":
        played = min((_clocked(tape) for _ in range(_RUNS)), key=lambda each: _length(itertools.chain(*each)))
        return played, min((profile(replay, device) for _ in range(_RUNS)), key=_length), False
    replayed = profile(replay, device)
    played = _marked(tape, device)
    flat = [span for own in played for span in own]
    if len(flat) != len(replayed) or not all(map(_same, flat, replayed)):
        return played, replayed, False
    left = iter(replayed)
    return [[next(left) for _ in own] for own in played], replayed, True


def _length(spans: Iterable[Span]) -> float:
    return sum(span.length for span in spans)


def _same(one: Span, other: Span) -> bool:
    """A copy or a fill has one name as a call and another as a node: ``Memset (Device)`` and ``memset32``."""
    return one.name == other.name or one.name[:3].lower() == other.name[:3].lower() == "mem"


def _marked(tape: Tape, device: torch.device) -> list[list[Span]]:
    def each(call: Callable[[], Any]) -> Any:
        torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
        return call()

    spans = profile(lambda: tape.play(each), device)
    return split(spans, len(tape.calls))


def split(spans: Sequence[Span], calls: int) -> list[list[Span]]:
    """What follows each mark. A profiler that lost some of them has lost everything.

    >>> [len(own) for own in split([Span("spin_kernel", 0, 1), Span("a", 1, 1), Span("spin_kernel", 2, 1)], calls=2)]
    [1, 0]
    """
    found: list[list[Span]] = []
    for span in spans:
        if _MARK in span.name:
            found.append([])
        elif found:
            found[-1].append(span)
    return found if len(found) == calls else [[] for _ in range(calls)]


def _clocked(tape: Tape) -> list[list[Span]]:
    found: list[list[Span]] = []

    def each(call: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        results = call()
        found.append([Span("", begin * 1e6, (time.perf_counter() - begin) * 1e6)])
        return results

    tape.play(each)
    return found


def table(rows: Sequence[Row]) -> Mapping[str, Any]:
    """Rows as compact JSON."""
    return {"columns": COLUMNS, "rows": [attrs.astuple(row) for row in rows]}
