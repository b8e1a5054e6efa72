"""The order in which a computation becomes a recording: warm up, freeze, capture."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch
from phyai.dispatch import Dispatcher
from phyai.errors import KernelFailure
from phyai.memory import may_be_the_kernels

from phyai_models.runner.graph import Recording, failures_named, record

_log = logging.getLogger("phyai.models")


class Warmer:
    """Makes recordings under one dispatcher, on one device: CUDA graphs with ``graphs``, else plain calls.

    Recordings are valid while :meth:`current` says so: a policy that was replaced, or a kernel that failed, makes all
    of them out of date.
    """

    def __init__(self, dispatcher: Dispatcher, device: torch.device, *, graphs: bool) -> None:
        self.dispatcher = dispatcher
        self.device = device
        self.graphs = graphs
        self._epoch = dispatcher.epoch
        self._pool: Any = None
        self._pooled: weakref.WeakSet[Recording] = weakref.WeakSet()

    def current(self) -> bool:
        """Whether recordings made so far are valid. Asked again after it said no, it is about those made since."""
        same = self.dispatcher.epoch == self._epoch
        self._epoch = self.dispatcher.epoch
        return same

    def open(self) -> None:
        """Let sites decide calls that they have not met. Recordings stay valid: what was decided stays."""
        if self.dispatcher.frozen:
            self.dispatcher.thaw()
            self._epoch = self.dispatcher.epoch
        for site in self.dispatcher.sites:  # those that a new policy, or a kernel that failed, left as they were
            if site.frozen:
                site.thaw()

    def record(self, compute: Callable[[], None], prepare: Callable[[], None]) -> Recording:
        """Run ``compute`` as often as its kernels want before they are captured, freeze, and capture it.

        ``prepare`` is called before it runs for the first time, and again when other kernels were chosen. A kernel
        that fails meanwhile is excluded, and the policy decides who takes its place.

        Raises:
            NoKernelError: it leaves a call without a kernel.
            CaptureError: something cannot be captured.
        """
        while True:
            self.open()
            prepare()
            try:
                self._warm_up(compute)
                self.dispatcher.freeze()
                if not self.graphs:
                    return Recording(compute)
                recording = record(compute, self.dispatcher, self._shared_pool())
                self._pooled.add(recording)
                return recording
            except BaseException as error:
                self._pooled.clear()  # what was recorded there is out of date anyway
                if not isinstance(error, KernelFailure):
                    raise
                # as text: a record that is kept would keep the exception, its frames, and what they recorded
                _log.warning("%s; another kernel takes its place", str(error))
                self.dispatcher.exclude(error.kernel, str(error))

    def _shared_pool(self) -> Any:
        """The pool of the recordings that live; torch takes none again whose graphs are all gone."""
        if not self._pooled:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def _warm_up(self, compute: Callable[[], None]) -> None:
        try:
            self._run(compute)
        except Exception as error:
            if not may_be_the_kernels(error):
                raise
            if self.graphs:
                torch.cuda.synchronize()  # raises where the device is lost, and with it every other kernel
            with failures_named(self.dispatcher, "it was warmed up"):
                compute()  # once more, now that all call sites are there, to see whose failure it is
            raise

    def _run(self, compute: Callable[[], None]) -> None:
        if not self.graphs:
            compute()
            return
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # what the first pass decides and compiles, the second one runs as it will be captured
                compute()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
