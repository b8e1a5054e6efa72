"""The engine itself: loads a model, then answers requests one at a time."""

from __future__ import annotations

import logging
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

from phyai.engine.config import EngineArgs
from phyai.engine.plugin import Host, ModelPlugin
from phyai.errors import DeviceMemoryError, PhyAIError, first_line
from phyai.memory import ran_out

if TYPE_CHECKING:
    from pathlib import Path

    from phyai.catalog import Catalog
    from phyai.dispatch import Dispatcher
    from phyai.policy import Policy
    from phyai.tune import Outcome

_log = logging.getLogger("phyai.engine")

#: How long measuring may take, in seconds, where nobody says.
TUNE_SECONDS = 60.0


class EngineError(PhyAIError, RuntimeError):
    """An engine was asked for something that it cannot do: the wrong arguments, or it is closed."""


class Engine:
    """One model on one device under one policy.

    ``policy`` is a policy, the path of a policy file, or None for the file that ``PHYAI_KERNEL_CONFIG`` names (and
    without it the shipped default policy). ``catalog`` is what was discovered, None to discover now. Several engines
    with different policies can live in one process; each owns its dispatcher.

    Raises:
        DeclarationError: no plug-in provides the model.
        EngineError: ``plugin_args`` are not what the model takes.
        PolicyError: the policy file was refused.
        CheckpointError: the model's checkpoint was refused.
        DeviceMemoryError: there is too little memory for the model, or to compile its kernels ahead.
    """

    def __init__(
        self, args: EngineArgs, *, policy: Policy | str | Path | None = None, catalog: Catalog | None = None
    ) -> None:
        from phyai.engine._host import make_host

        self.args = args
        self.host: Host = make_host(args, policy, catalog)
        plugin: ModelPlugin = self.host.catalog.model(args.plugin)
        arguments = plugin.arguments_class()
        if not isinstance(args.plugin_args, arguments):
            raise EngineError(
                f"plugin_args of {args.plugin!r} should be a {arguments.__module__}.{arguments.__qualname__}, "
                f"and is a {type(args.plugin_args).__name__}"
            )
        with self.host.current(), self.dispatcher.telling_together():
            self.model = plugin.loader()(args.plugin_args, self.host)
            self._compile_ahead()
        self._lock = threading.Lock()
        self._closed = False
        self._to_tune = self.host.dispatcher.policy.profile == "autotune"
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"phyai-{args.plugin}")

    def _compile_ahead(self) -> None:
        """Have compiled what requests would wait for; the model is let go of where memory runs out."""
        try:
            self.dispatcher.compile_ahead()
        except Exception as error:
            if not ran_out(error):
                raise
            traceback.clear_frames(error.__traceback__)  # they hold the model
            self.model.close()
            self.dispatcher.release()
            raise DeviceMemoryError(
                f"memory on {self.host.environment.device} ran out while the kernels of {self.args.plugin} were "
                f"compiled ahead ({first_line(error)}); free memory, or have the model take less (the type of its "
                "parameters, a policy that quantizes them)"
            ) from None

    @property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher of this engine alone: its decisions, its policy."""
        return self.host.dispatcher

    def step(self, request: Any) -> Any:
        """The model's answer to ``request``, computed in the calling thread; calls take turns.

        Where the policy's profile is ``autotune``, the first request is tuned for before it is answered (:meth:`tune`).

        Raises:
            EngineError: the engine is closed.
            InputError: the request does not fit the model.
        """
        with self._lock, self.host.current(), self.dispatcher.telling_together():
            if self._closed:
                raise EngineError("this engine is closed; make a new one")
            if self._to_tune:
                self._tune_first(request)
            return self.model.step(request)

    def tune(self, request: Any = None, *, seconds: float = TUNE_SECONDS, **options: Any) -> Outcome:
        """Measure the kernels of the calls that ``request`` makes, keep the timings, and use what is faster.

        ``request`` None is the model's own example. What is known already is not measured again. ``options`` are
        those of :func:`phyai.tune.tune_model`; without ``progress``, a terminal shows a bar.
        Requests wait meanwhile.

        Raises:
            EngineError: the engine is closed.
            TuneError: the tuning store cannot be read or written, or measuring does not work.
        """
        with self._lock, self.host.current(), self.dispatcher.telling_together():
            if self._closed:
                raise EngineError("this engine is closed; make a new one")
            if request is None:
                request = self.host.catalog.model(self.args.plugin).example_request(self.model)
            return self._tune(request, seconds=seconds, **options)

    def _tune_first(self, request: Any) -> None:
        """Tune for the first request, and say so: whoever waits for its answer should know why."""
        import os

        from phyai.tune import Store

        store = Store.of(self.host.environment.device, os.environ)
        _log.warning(
            "profile autotune: this request waits while what is not known yet is measured, at most about %g s; "
            "the results go to %s", TUNE_SECONDS, store.path,
        )  # fmt: skip
        outcome = self._tune(request, store=store)
        _log.warning(
            "tuned in %.1f s; kinds of call measured: %d, known: %d%s", outcome.seconds, len(outcome.measured),
            len(outcome.known), f", left out for lack of time: {len(outcome.late)}" if outcome.late else "",
        )  # fmt: skip

    def _tune(self, request: Any, *, seconds: float = TUNE_SECONDS, **options: Any) -> Outcome:
        import os

        from phyai.bars import bar
        from phyai.tune import Isolated, Store, tune_model

        self._to_tune = False
        environment = self.host.environment
        options.setdefault("store", Store.of(environment.device, os.environ))
        measurer = options.pop("measurer", None) or Isolated(self.host.catalog, environment)
        try:
            with nullcontext() if "progress" in options else bar("tuning") as report:
                if report is not None:
                    options["progress"] = lambda done, total, what: report(done, total)
                return tune_model(
                    self.dispatcher, lambda: self.model.step(request), measurer, seconds=seconds, **options
                )
        finally:
            measurer.close()

    def submit(self, request: Any) -> Future[Any]:
        """Like :meth:`step`, in the engine's own thread; requests are answered in the order in which they came.

        Raises:
            EngineError: the engine is closed. Everything else is raised by the future's ``result()``.
        """
        try:
            return self._worker.submit(self.step, request)
        except RuntimeError as error:
            raise EngineError("this engine is closed; make a new one") from error

    def close(self) -> None:
        """Finish the running request, cancel those that wait, and let go of the model. Again: nothing."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            if not self._closed:
                self._closed = True
                self.model.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
