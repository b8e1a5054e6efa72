"""Where the time of a stage goes: its calls by kind, site and kernel, each beside its floor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from phyai.facts import Facts, whole

from phyai_models.bench.floor import Case, Ceilings, Work, expert
from phyai_models.bench.tape import Call, Tape
from phyai_models.bench.timeline import Span, kind_of, profile

#: Weights that a product reads whole, by the ops that have them.
PRODUCTS = ("gemm", "mlp", "gated_mlp", "qkv_rope_kv_write", "conv2d")
MATRICES = ("weight", "gate_up", "down", "fc1", "fc2")
#: What an op is, where its kernel's name does not tell.
KINDS = {
    **dict.fromkeys(PRODUCTS, "product"), "attention": "attention", "attention_paged": "attention", "rope": "rope",
    "kv_write": "rope", "expert_steps": "expert", "activation": "activation", "gated_activation": "activation",
    "gated_residual": "residual",
}  # fmt: skip
_MARK = "spin_kernel"  # what torch.cuda._sleep launches

COLUMNS = ("kind", "role", "op", "kernel", "size", "calls", "kernels", "us", "floor_us")


@attrs.frozen
class Row:
    """Calls of one kernel at sites of one role, with the same sizes. ``kernels`` are launches, ``us`` microseconds, all
    calls together; ``floor_us`` is the least that their products, attention and weights take."""

    kind: str
    role: str
    op: str
    kernel: str
    size: str
    calls: int
    kernels: int
    us: float
    floor_us: float


def rows_of(tape: Tape, spans: Sequence[Sequence[Span]], case: Case, ceilings: Ceilings) -> list[Row]:
    """One row for every kind of call on the tape, the longest first; ``spans`` are the kernels of each call."""
    found: dict[tuple[str, str, str, str, str], list[tuple[Sequence[Span], float]]] = {}
    for call, own in zip(tape.calls, spans, strict=True):
        if own:
            floor = work_of(call, case).seconds(ceilings) * 1e6
            found.setdefault(_key(call), []).append((own, floor))
    rows = [
        Row(
            kind, role, op, kernel, size, calls=len(each), kernels=sum(len(own) for own, _ in each),
            us=round(sum(span.length for own, _ in each for span in own), 3),
            floor_us=round(sum(floor for _, floor in each), 3),
        )
        for (kind, role, op, kernel, size), each in found.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -row.us)


def by_kind(tape: Tape, spans: Sequence[Sequence[Span]], rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Launches and microseconds of every kind of kernel, and the floor of the calls of that kind. A call that is a
    product and more counts by its kernels, its floor with the products."""
    found: dict[str, dict[str, float]] = {}
    for call, own in zip(tape.calls, spans, strict=True):
        for span in own:
            kind = kind_of(span.name)
            total = found.setdefault(
                _kind(call) if kind == "other" else kind, {"kernels": 0, "us": 0.0, "floor_us": 0.0}
            )
            total["kernels"] += 1
            total["us"] += span.length
    for row in rows:
        if row.floor_us:
            found.setdefault(row.kind, {"kernels": 0, "us": 0.0, "floor_us": 0.0})["floor_us"] += row.floor_us
    ordered = sorted(found.items(), key=lambda item: -item[1]["us"])
    return {kind: {name: round(value, 3) for name, value in total.items()} for kind, total in ordered}


def _key(call: Call) -> tuple[str, str, str, str, str]:
    if call.site is None:
        return _kind(call), "", "", call.name, ""
    facts = call.site.facts_of_call(call.args)
    sizes = ((dim.name, facts.get(f"shape.{dim.name}")) for dim in call.site.op.dims)
    size = " ".join(f"{name}={value}" for name, value in sizes if value is not None)
    return _kind(call), str(facts.get("role") or ""), call.site.op.name, call.name, size


def _kind(call: Call) -> str:
    if call.site is None:
        return "between"
    op = call.site.op.name
    return KINDS.get(op, "norm" if "norm" in op else "other")


def work_of(call: Call, case: Case) -> Work:
    """The least that a call does: products and attention by their operations, weights, keys and values by their bytes.

    What else a call reads and writes fits into caches and counts nothing.
    """
    site = call.site
    if site is None:
        return Work(0, 0)
    facts, op = site.facts_of_call(call.args), site.op.name
    if op == "expert_steps":
        return expert(case)
    if op in PRODUCTS:
        held = [site.weights[name] for name in MATRICES if site.weights.get(name) is not None]
        elements = sum(_elements(weight) for weight in held)
        return Work(2 * _rows(call, facts, held[0]) * elements, sum(_nbytes(weight) for weight in held))
    if op in ("attention", "attention_paged"):
        return _attention(call, facts, case)
    return Work(0, 0)


def _attention(call: Call, facts: Facts, case: Case) -> Work:
    heads, kv_heads, dim = (whole(facts, f"shape.{name}") for name in ("heads", "kv_heads", "head_dim"))
    q, itemsize = call.args[0], call.args[0].element_size()
    queries = q.numel() // (heads * dim)
    if facts.get("op") == "attention":
        return Work(4 * queries * call.args[1].shape[-3] * heads * dim, 0)
    prefix = facts.get("role") == "prefix"
    keys = case.prefix_tokens + (0 if prefix else case.suffix_tokens)
    cache = 0 if prefix else 2 * case.batch * case.prefix_tokens * kv_heads * dim * itemsize
    return Work(4 * queries * keys * heads * dim, cache)


def _rows(call: Call, facts: Facts, weight: Any) -> int:
    for name in ("shape.M", "shape.T"):
        if name in facts:
            return whole(facts, name)
    y = call.results[0] if isinstance(call.results, tuple) else call.results
    return int(y.numel() // weight.shape[0])  # a convolution: places of its output


def _elements(weight: Any) -> int:
    return int(torch.Size(weight.shape).numel())


def _nbytes(weight: Any) -> int:
    return int(weight.nbytes if isinstance(weight, torch.Tensor) else weight.nbytes())


# Times of the calls on a tape


def spans_of(
    tape: Tape, replay: Callable[[], object], device: torch.device
) -> tuple[list[list[Span]], list[Span], bool]:
    """The kernels of every call of ``tape``, all kernels of ``replay``, which makes the same calls, and whether the
    former's times are from there.

    On a GPU the tape is played once with a mark between its calls, which says how many kernels each has; where the
    replayed graph has the same ones, the times are the graph's. On a CPU calls are timed by the clock.
    """
    replayed = profile(replay, device)
    if device.type != "cuda":
        return _clocked(tape), replayed, False
    played = _marked(tape, device)
    flat = [span for own in played for span in own]
    if len(flat) != len(replayed) or not all(map(_same, flat, replayed)):
        return played, replayed, False
    left = iter(replayed)
    return [[next(left) for _ in own] for own in played], replayed, True


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
