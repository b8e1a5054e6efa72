"""Recording a computation over buffers that stay in place, and running it again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from phyai.dispatch import Dispatcher, Site
from phyai.errors import KernelFailure
from phyai.memory import may_be_the_kernels


@attrs.frozen(eq=False)
class Recording:
    """A computation that can run again. ``captured``: as a CUDA graph, for which its pool took ``nbytes`` more."""

    replay: Callable[[], None]
    captured: bool = False
    nbytes: int = 0


def record(compute: Callable[[], None], dispatcher: Dispatcher, pool: Any) -> Recording:
    """Capture ``compute`` as a CUDA graph whose intermediate results lie in ``pool``.

    Everything that it calls must have run before, and the dispatcher must be frozen. A ``pool`` in which a capture
    failed takes no other one: give a new one to the next attempt.

    Raises:
        CaptureError: the dispatcher is not frozen, or something undecided was reached.
        KernelFailure: a kernel raised; it is named.
    """
    dispatcher.require_frozen()
    graph = torch.cuda.CUDAGraph()
    before, stream = _held(pool), torch.cuda.current_stream()
    raised: list[BaseException] = []
    try:
        with failures_named(dispatcher), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            try:
                compute()
            except BaseException as error:
                raised.append(error)
                raise
    except BaseException:
        _abandon(pool, stream)
        if raised:  # ending a broken capture raises too, and says less
            raise raised[0] from raised[0].__cause__
        raise
    return Recording(graph.replay, True, _held(pool) - before)


def _held(pool: Any) -> int:
    """Bytes that ``pool`` holds. What torch reserves in all says less: a capture frees what it had cached elsewhere."""
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) == tuple(pool))


def _abandon(pool: Any, stream: torch.cuda.Stream) -> None:
    """Undo what ``torch.cuda.graph`` leaves of a capture that CUDA invalidated: ending it raises before the stream is
    restored and before allocations stop to go to the pool."""
    torch.cuda.set_stream(stream)
    torch.cuda.synchronize()
    device = torch.cuda.current_device()
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError:
        return  # it ended as it should: a kernel raised on the host, and CUDA saw nothing wrong
    torch._C._cuda_releasePool(device, pool)


@contextlib.contextmanager
def failures_named(dispatcher: Dispatcher, meanwhile: str = "a CUDA graph was captured") -> Iterator[None]:
    """While this holds, what a kernel raises becomes a :class:`phyai.errors.KernelFailure` with its name and site.
    ``meanwhile`` says in its message what is going on."""
    runs = {site: site.run for site in dispatcher.sites}
    for site, run in runs.items():
        site.run = _naming(site, run, meanwhile)
    try:
        yield
    finally:
        for site, run in runs.items():
            site.run = run


def _naming(site: Site, run: Callable[..., Any], meanwhile: str) -> Callable[..., Any]:
    def call(*inputs: Any, out: Any = None, state: Any = None) -> Any:
        try:
            return run(*inputs, out=out, state=state)
        except Exception as error:
            if not may_be_the_kernels(error):
                raise
            kernel = site.chosen(inputs).id
            raise KernelFailure.of(error, site=site.name, kernel=kernel, meanwhile=meanwhile) from error

    return call
