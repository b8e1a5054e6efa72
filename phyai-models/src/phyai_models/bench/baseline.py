"""The baselines: the plain implementation in one CUDA graph, and through ``torch.compile``."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from phyai.errors import PhyAIError, first_line

from phyai_models.bench.plain import PlainPi
from phyai_models.pi.inputs import Inputs
from phyai_models.pi.model import PiModel
from phyai_models.weights import WeightSource


class BaselineError(PhyAIError):
    """A baseline could not be made."""


class TimeBoxError(BaselineError):
    """Something took longer than it was given."""


def plain_model(model: PiModel, source: WeightSource, dtype: torch.dtype, *, sdpa: bool) -> PlainPi:
    """The plain implementation with the weights that ``model`` took from ``source``, all in ``dtype``."""
    weights = {}
    for spec in model.tensors():
        weights[spec.name] = torch.empty(spec.shape, dtype=dtype, device=model.device)
        source.take(spec.name, weights[spec.name])
    return PlainPi(weights, model.config, dtype, sdpa=sdpa)


@attrs.define
class Baseline:
    """The plain implementation on buffers of its own. ``run`` reads them and writes ``actions``."""

    buffers: Inputs
    run: Callable[[], None]
    actions: torch.Tensor

    @torch.no_grad()
    def __call__(self, inputs: Inputs) -> torch.Tensor:
        """The actions of ``inputs``, float32 on the CPU."""
        for field in attrs.fields(Inputs):
            getattr(self.buffers, field.name).copy_(getattr(inputs, field.name))
        self.run()
        return self.actions.to("cpu", torch.float32, copy=True)  # the next run overwrites what is on a CPU already


@torch.no_grad()
def make_baseline(plain: PlainPi, inputs: Inputs, steps: int, *, compile_seconds: float | None = None) -> Baseline:
    """The plain implementation for batches like ``inputs``; on a GPU as one CUDA graph.

    With ``compile_seconds`` its towers go through ``torch.compile`` first, which may take so long.

    Raises:
        TimeBoxError: compiling took longer.
        BaselineError: compiling failed.
    """
    device = plain.device
    buffers = Inputs(**{f.name: getattr(inputs, f.name).to(device, copy=True) for f in attrs.fields(Inputs)})
    embedded, actions = plain.embedded_times(steps), torch.zeros_like(buffers.noise)
    if compile_seconds is not None:
        plain.image = torch.compile(plain.image, dynamic=False)  # type: ignore[method-assign]
        plain.tower = torch.compile(plain.tower, dynamic=False)  # type: ignore[method-assign]

    given = {f.name: getattr(buffers, f.name) for f in attrs.fields(Inputs)}

    def run() -> None:
        actions.copy_(plain(**given, time=embedded))

    with _compiling(compile_seconds):
        if device.type != "cuda":
            run()
            return Baseline(buffers, run, actions)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    return Baseline(buffers, graph.replay, actions)


@contextlib.contextmanager
def _compiling(limit: float | None) -> Iterator[None]:
    """What goes through ``torch.compile`` first where there is a ``limit`` in seconds."""
    try:
        with _time_box(limit):
            yield
    except (PhyAIError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if limit is None:
            raise
        raise BaselineError(f"torch.compile failed: {type(error).__name__}: {first_line(error)}") from error


@contextlib.contextmanager
def _time_box(seconds: float | None) -> Iterator[None]:
    """Interrupt what takes longer than ``seconds``. In the main thread of a Unix process."""
    if seconds is None:
        yield
        return
    begin = time.perf_counter()
    late: TimeBoxError | None = None

    def stop(*_: Any) -> None:
        nonlocal late
        late = TimeBoxError(f"stopped after {time.perf_counter() - begin:.0f} s (--compile-seconds)")
        raise late

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except Exception:
        if late is None:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if late is not None:  # a compiler wraps what is raised in its midst, or takes it for a reason not to compile
        raise late


def worst_cosine(got: torch.Tensor, want: torch.Tensor) -> float:
    """The smallest cosine between the samples ``[N, chunk, action]`` of one and the other.

    >>> round(worst_cosine(torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]]]), torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]])), 4)
    0.7071
    """
    each = torch.nn.functional.cosine_similarity(got.double().flatten(1), want.double().flatten(1))
    return float(each.min())
