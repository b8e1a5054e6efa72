"""The dispatcher: makes sites, decides for them, and keeps the order tune, freeze, capture."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from phyai.calls import check_names
from phyai.catalog import Catalog
from phyai.dispatch.ahead import compile_ahead
from phyai.dispatch.binding import signature as describe
from phyai.dispatch.binding import static_facts
from phyai.dispatch.capture import capturing
from phyai.dispatch.chain import Chain
from phyai.dispatch.decider import Decider
from phyai.dispatch.layouts import Layouts, Lowering, plain_quantized
from phyai.dispatch.lent import Lent
from phyai.dispatch.memo import Entry, Memo, Node
from phyai.dispatch.replacement import PolicyChange, replace
from phyai.dispatch.report import Report, report_of
from phyai.dispatch.resources import EngineResources
from phyai.dispatch.site import Site
from phyai.environment import Environment
from phyai.errors import CallError, CaptureError
from phyai.facts import Facts
from phyai.kernel import Progress
from phyai.policy import Policy


class Watcher(Protocol):
    """Whoever records the calls of open sites: each of them once for every shape, before it runs."""

    def see(self, site: Site, facts: Facts) -> None:
        """A call of ``site`` with ``facts``."""

    def plan(self, site: Site, metadata: Mapping[str, Any]) -> None:
        """``site`` plans for calls to come."""


class Dispatcher:
    """The call sites of one engine, under one policy, on one device.

    ``facts`` are given to every site (``model.family``, ``model.tags``). ``is_capturing`` tells whether a CUDA
    graph is being captured; it is asked only when something is not decided yet.

    >>> from phyai.environment import Device
    >>> from phyai.kernel import Capture, Kernel, Numerics, Prepared
    >>> from phyai.plugins import Plugin, PluginStatus
    >>> from phyai.predicates import match
    >>> def prepare(facts, weights, params, resources):
    ...     return Prepared(run=lambda x, out=None, state=None: f"{facts['attrs.activation']}({x})")
    >>> silu = Kernel(id="mine.activation.silu", op="activation", when=match({"attrs.activation": "silu"}),
    ...               prepare=prepare, capture=Capture.SAFE, numerics=Numerics(reproducible=True))
    >>> catalog = Catalog.build([Plugin(PluginStatus("mine"), kernels=(silu,))])
    >>> dispatcher = Dispatcher(catalog, Policy(), Environment(Device("cpu")))
    >>> site = dispatcher.bind("activation", layer="mlp.act", attrs={"activation": "silu"}, dtypes={"x": "bf16"})
    >>> site.decide(M=50, D=8).kernel.id
    'mine.activation.silu'
    >>> dispatcher.freeze()
    >>> site.run("x")  # the prepared run itself: nothing of the dispatcher is left
    'silu(x)'
    """

    def __init__(
        self,
        catalog: Catalog,
        policy: Policy,
        environment: Environment,
        resources: EngineResources | None = None,
        *,
        facts: Mapping[str, Any] | None = None,
        is_capturing: Callable[[], bool] = capturing,
    ) -> None:
        self.catalog = catalog
        self.policy = policy
        self.environment = environment
        self.resources = resources or EngineResources(environment.device)
        self.frozen = False
        #: Grows whenever sites are thawed: what was captured in an earlier one may be out of date.
        self.epoch = 0
        #: Told of calls that sites have not met yet, while somebody records them.
        self.watcher: Watcher | None = None
        self._layouts = Layouts(catalog, policy, environment)
        self._common = {**environment.facts(), **(facts or {})}
        self._is_capturing = is_capturing
        self._roots: list[Site] = []
        self._lock = threading.RLock()
        self._decider = Decider(catalog, environment, lambda site, policy: Lent(self, site, policy))

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every site, in the order in which they were bound; those of a composite op's parts after it."""
        return tuple(site for root in self._roots for site in root.walk())

    def bind(
        self,
        op: str,
        *,
        role: str | None = None,
        layer: str | None = None,
        phase: str | None = None,
        weights: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        dims: Mapping[str, int] | None = None,
        present: Collection[str] = (),
        facts: Mapping[str, Any] | None = None,
        capture: bool = False,
        rows: tuple[int, int] | None = None,
        layouts: Mapping[str, str] | None = None,
        chain: Chain | None = None,
    ) -> Site:
        """A call site of ``op``.

        ``weights`` are bound here; dimensions and dtypes follow from them. ``dtypes`` names those of inputs (at
        least one that has a choice), ``dims`` dimensions that weights do not show (fixing a dynamic one promises
        that every call has it), ``present`` the optional inputs that every call gives. ``facts`` adds what the
        signature does not say (``quant.*``, ``model.*``). ``capture``: the site will run inside a CUDA graph.

        A quantized weight in the plain layout is packed into the layout that :mod:`phyai.dispatch.layouts` chooses
        for it over the numbers of rows (M) from ``rows[0]`` to ``rows[1]``, or into the one that ``layouts`` names.

        ``chain`` is how the caller computes a chained op itself.

        Raises:
            CallError: something that the signature does not have or allow, with the signature.
            DeclarationError: an unknown op.
            NoKernelError: no layout of a quantized weight gives every call a kernel.
        """
        signature = self.catalog.op(op)
        name = f"{layer}:{signature.name}" if layer else f"{role or 'site'}:{signature.name}#{len(self._roots)}"
        own = dict(weights or {})
        extra = {**self._common, "role": role, "layer": layer, "phase": phase, "mode.capture": capture, **(facts or {})}
        try:
            check_names(signature, facts or (), self.catalog.vocabulary_of(signature.name))
            static = static_facts(
                signature,
                weights=own,
                attrs=attrs or {},
                dtypes=dtypes or {},
                dims=dims or {},
                present=present,
                extra=extra,
            )
        except CallError as error:
            raise CallError(f"binding site {name}: {error}\n  signature: {describe(signature)}") from None
        with self._lock:
            chosen = self._layouts.choose(signature, static, plain_quantized(own), rows=rows, forced=layouts)
        lowering = Lowering(static, chosen, rows, dict(layouts or {}))
        site = Site(
            self, signature, name, lowering.lowered(signature), lowering.packed(own), self.policy, lowering, chain
        )
        with self._lock:
            self._roots.append(site)
        return site

    def telling_together(self) -> AbstractContextManager[None]:
        """Within it, ops for which only reference kernels are left are logged in one line, at its end."""
        return self._decider.told.together()

    # Deciding

    def decide(self, site: Site, facts: Facts) -> Entry:
        """The entry for a call of ``site`` with ``facts``, decided and prepared if it is new. Thread-safe."""
        with self._lock:
            return self.decide_in(site, site.memo, facts, self.policy)

    def decide_in(self, site: Site, memo: Memo, facts: Facts, policy: Policy) -> Entry:
        """The same in any memo of the site, under any policy."""
        return self._decider.entry(site, memo, facts, policy)

    def node(self, site: Site, facts: Facts) -> Node:
        """What is decided for a call of ``site`` with ``facts``, remembered, with nothing prepared for it.

        Raises:
            NoKernelError: no kernel may run it.
        """
        return self._decider.node(site, site.memo, facts, self.policy)

    def compile_ahead(self, progress: Progress | None = None) -> None:
        """Have compiled, side by side, what the sites would wait for one after the other when they are first called.

        Called once everything is bound. Which calls will come follows from the numbers of rows that sites were bound
        with. ``progress`` is called with how many are done, and how many there are; None shows a bar on a terminal.
        What does not compile is logged, and decided without when its call comes. Frozen, nothing waits.

        Raises:
            CallError: a parameter that a kernel does not take.
        """
        with self._lock:
            if not self.frozen:
                compile_ahead(self, progress)

    def refuse_capture(self, site: Site, why: str) -> None:
        """Raise where a CUDA graph is being captured.

        Raises:
            CaptureError: naming the site and what to do.
        """
        if self._is_capturing():
            raise CaptureError(
                f"site {site.name} was reached while a CUDA graph is being captured, but {why}; "
                f"run the same call once before the capture, then freeze(), then capture"
            )

    # Tune, freeze, capture

    def freeze(self) -> None:
        """Decide static sites that are not decided yet, then decide nothing any more.

        Raises:
            NoKernelError: a static site that no call decided can have no kernel; nothing is frozen then.
        """
        with self._lock:
            waiting = list(self._roots)
            while waiting:  # settling a composite makes the sites of its parts
                site = waiting.pop()
                site.settle()
                waiting += site.inner
            for site in self.sites:
                site.freeze()
            self.resources.freeze()
            self.frozen = True

    def thaw(self) -> None:
        """Let every site decide new calls again. What was decided stays."""
        with self._lock:
            for site in self.sites:
                site.thaw()
            self._reopen()

    def exclude(self, kernel: str, why: str) -> None:
        """Never choose the kernel of this id again: it failed after it was prepared, while it planned, was warmed up
        or was captured in a CUDA graph. ``why`` is what its rejection says.

        Sites that had chosen it decide anew, as the policy says; a rule that leaves them no other kernel raises then.
        Graphs that contain one of those sites must be captured anew.
        """
        with self._lock:
            self._decider.excluded[kernel] = why
            for site in self.sites:
                if any(entry.kernel.id == kernel for entry in site.memo.entries()):
                    site.forget()
            self._reopen()

    def release(self) -> None:
        """Let go of every site, with the weights bound there, and of every workspace. The dispatcher is empty then."""
        with self._lock:
            self._roots.clear()
            self.resources.release()

    def require_frozen(self) -> None:
        """Called before a CUDA graph is captured.

        Raises:
            CaptureError: the dispatcher is not frozen.
        """
        if not self.frozen:
            raise CaptureError("capture comes after freeze(): call freeze() once every call to come has run once")

    def replace_policy(self, policy: Policy) -> PolicyChange:
        """Put another policy in force. Everything decided so far is decided under it first; then only what
        differs is thawed. See :mod:`phyai.dispatch.replacement`.

        Raises:
            NeedsReload: the new policy needs weights in another form. The old policy stays in force.
            NoKernelError: it leaves a call without a kernel. The old policy stays in force.
        """
        with self._lock:
            self.resources.thaw()  # kernels that take others' places may ask for workspaces
            try:
                change = replace(self, policy)
            finally:
                if self.frozen:
                    self.resources.freeze()
            self.policy = policy
            self._layouts = Layouts(self.catalog, policy, self.environment)
            if change.thawed:
                self._reopen()
            return change

    def _reopen(self) -> None:
        self.resources.thaw()
        self.frozen = False
        self.epoch += 1

    # Reporting

    def report(self) -> Report:
        """Every site with its decisions, and the user's rules that none of them matched."""
        return report_of(self.sites, self.policy)
