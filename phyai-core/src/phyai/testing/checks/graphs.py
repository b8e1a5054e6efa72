"""On a GPU: capture and replay with new inputs, and streams other than the default one."""

from __future__ import annotations

from typing import Any

import attrs

from phyai.errors import CallError, NoKernelError
from phyai.kernel import Capture
from phyai.testing.bench import Call
from phyai.testing.case import Case
from phyai.testing.checks.check import Check, needs_cuda
from phyai.testing.subject import (
    Bound,
    Finding,
    NotApplicable,
    Subject,
    as_out,
    places,
    results,
)  # fmt: skip

#: Clock cycles that a stream is kept busy with before its inputs arrive: some tens of milliseconds.
_BUSY = 50_000_000


def captured(subject: Subject, case: Case) -> None:
    """Record one call, then replay it with other inputs, other lengths and other weights in the same buffers."""
    import torch

    if case.values == "zeros":
        raise NotApplicable("zeros look like other zeros")
    facts = subject.space.facts(case)
    if facts is None or not subject.kernel.when.holds({**facts, "mode.capture": True}):
        raise NotApplicable("not claimed inside a captured graph")
    call = subject.call(case)
    want = subject.wanted(call)
    if not any(w.numel() for w in want):
        raise NotApplicable("a call without elements records nothing")
    bound = subject.site(call, capture=True)
    buffers = call.copy()
    placed = places(call, want)
    out = as_out(placed)
    try:
        state = bound.plan(buffers)
        bound.site.run(*buffers.inputs.values(), out=out, state=state)  # decides, and warms up
    except NoKernelError as refused:
        raise NotApplicable("its capability leaves captured calls of this kind out") from refused
    bound.dispatcher.freeze()
    bound.site.run(*buffers.inputs.values(), out=out, state=state)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    _restore(buffers, call)
    try:
        with torch.cuda.graph(graph):
            returned = bound.site.run(*buffers.inputs.values(), out=out, state=state)
    except Exception as error:
        torch.cuda.synchronize()
        raise Finding(
            f"cannot be captured, though capture is {subject.kernel.capture.value}: {_line(error)}"
        ) from error
    _replay(subject, graph, buffers, call, want, placed, returned, "replayed, ")
    other = _fresh(subject, call)
    _set_metadata(bound, buffers, other)
    _replay(subject, graph, buffers, other, subject.wanted(other), placed, returned, "replayed with new inputs, ")
    _replay_refreshed(subject, bound, graph, buffers, call, other, placed, returned)


def _fresh(subject: Subject, call: Call) -> Call:
    """Other inputs (and other lengths, where they may change) with the same weights."""
    other = subject.call(call.case, seed=call.case.seed + 1)
    metadata = call.metadata if call.case.attrs.get("fixed_lengths") else other.metadata
    return attrs.evolve(other, weights=call.weights, plain=call.plain, metadata=metadata)


def _set_metadata(bound: Bound, buffers: Call, source: Call) -> None:
    """New lengths in the engine's own buffers, planned again as before every replay."""
    if not buffers.metadata or source.case.attrs.get("fixed_lengths"):
        return
    for name, tensor in buffers.metadata.items():
        tensor.copy_(source.metadata[name])
    bound.plan(buffers)


def _replay(
    subject: Subject, graph: Any, buffers: Call, source: Call, want: list[Any], placed: list[Any], returned: Any,
    what: str,
) -> None:  # fmt: skip
    import torch

    _restore(buffers, source)
    for p in placed:
        p.poison()
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    got = [*(p.tensor for p in placed), *(buffers.inputs[name] for name in buffers.mutated)]
    subject.check(buffers, got, want, what)
    results(buffers, returned)


def _replay_refreshed(
    subject: Subject, bound: Bound, graph: Any, buffers: Call, call: Call, other: Call, placed: list[Any], returned: Any
) -> None:
    if not call.weights:
        return
    new = subject.call(call.case, seed=call.case.seed + 2)
    try:
        bound.site.refresh(new.weights)
    except CallError:
        return  # no refresh: the check of that name says so
    after = attrs.evolve(other, weights=new.weights, plain=new.plain)
    _replay(subject, graph, buffers, after, subject.wanted(after), placed, returned, "replayed after refresh, ")


def streamed(subject: Subject, case: Case) -> None:
    """A call on another stream, behind work that makes its inputs: it must wait for that, and for nothing else."""
    import torch

    if case.values == "zeros":
        raise NotApplicable("zeros look like other zeros")
    call = subject.call(case)
    want = subject.wanted(call)
    bound = subject.site(call)
    buffers = call.copy()
    placed = places(call, want)
    state = bound.plan(buffers)
    bound.site.run(*buffers.inputs.values(), out=as_out(placed), state=state)
    for tensor in buffers.inputs.values():
        if tensor is not None and tensor.is_floating_point():
            tensor.zero_()
    for p in placed:
        p.poison()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_BUSY)  # type: ignore[no-untyped-call]
        _restore(buffers, call)
        bound.site.run(*buffers.inputs.values(), out=as_out(placed), state=state)
    stream.synchronize()
    torch.cuda.synchronize()
    got = [*(p.tensor for p in placed), *(buffers.inputs[name] for name in buffers.mutated)]
    subject.check(buffers, got, want, "on a stream of its own, ")


def _restore(buffers: Call, source: Call) -> None:
    """The source's inputs, in the buffers that the call was made with."""
    for name, tensor in buffers.inputs.items():
        if tensor is not None:
            tensor.copy_(source.inputs[name])


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _not_capturable(subject: Subject) -> str | None:
    if subject.kernel.capture is Capture.NEVER:
        return "declared as never capturable"
    return needs_cuda(subject)


CAPTURED = Check("capture", "can be captured, and replayed with new inputs", captured, _not_capturable)
STREAMED = Check("streams", "stays on the current stream", streamed, needs_cuda)
