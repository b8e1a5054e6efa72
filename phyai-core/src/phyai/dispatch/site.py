"""Call sites: what a layer holds and calls.

``site.run(*inputs, out=None, state=None)`` is an attribute that freezing replaces, so call it through the
site. Open, it looks the call up by the shapes and dtypes of its inputs; what it has not met it checks against
the signature, and decides if no call of the kind was decided before. Frozen, a site at which no dynamic fact
matters *is* the prepared kernel, and any other keeps one look-up by shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from phyai.decision import Decision
from phyai.dims import bind_dims
from phyai.dispatch.layouts import Lowering
from phyai.dispatch.memo import Cells, Entry, Memo, open_facts
from phyai.dispatch.outputs import Outputs
from phyai.dispatch.reader import Reader, input_dims, tensors_with
from phyai.dispatch.shortcuts import Shortcuts
from phyai.errors import CallError, FrozenSiteError
from phyai.facts import Facts
from phyai.kernel import Capture, Kernel, Prepared
from phyai.op import Op
from phyai.policy import Policy
from phyai.refresh import renewed
from phyai.resolver.parts import Parts, chained_parts

if TYPE_CHECKING:
    from phyai.dispatch.chain import Chain
    from phyai.dispatch.dispatcher import Dispatcher

_WARMUP = "its kernel wants one eager call first"


class Site:
    """One call site. Made by :meth:`phyai.dispatch.Dispatcher.bind`.

    ``static`` are the facts known since it was bound, ``open`` the names of those that calls add.
    """

    run: Callable[..., Any]

    def __init__(
        self,
        dispatcher: Dispatcher,
        op: Op,
        name: str,
        static: Facts,
        weights: Mapping[str, Any],
        policy: Policy,
        lowering: Lowering | None = None,
        chain: Chain | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self.op = op
        self.name = name
        self.static = static
        self.open = open_facts(op, static)
        self.open_dims = self.open & {f"shape.{dim}" for dim in input_dims(op)}
        self.weights = weights
        self.chain = chain
        #: How the layouts of its quantized weights were chosen.
        self.lowering = lowering or Lowering(static)
        self.memo = Memo(Cells(op, static, dispatcher.catalog, policy))
        self.reader = Reader(op, name, static)
        self._outputs = Outputs(op, name, self.reader.present)
        self.thaw()

    def __repr__(self) -> str:
        return f"<Site {self.name}{' frozen' if self.frozen else ''}>"

    # What a layer or an engine asks

    def decide(self, **dims: int) -> Decision:
        """The decision for a call with these dimensions, remembered like that of a call; nothing is run.

        Raises:
            CallError: an unknown dimension, one that was fixed when the site was bound, or one missing that matters.
            NoKernelError: no kernel may run such a call.
        """
        return self._entry(self.facts_of(dims)).decision

    def plan(self, metadata: Mapping[str, Any], **dims: int) -> Any:
        """What the kernel's ``plan`` returns for ``metadata``: give it to ``run`` as ``state``.

        ``dims`` are dimensions of the call to come that matter to the decision (``T=50``); those that only metadata
        show never do. Sites of one engine with equal :meth:`plan_key` can share a state. None when the kernel plans
        nothing.

        Raises:
            CallError: metadata that the signature does not have, misshapen ones, or a dimension missing.
        """
        expected = [t.name for t in self.op.metadata]
        if set(metadata) != set(expected):
            raise CallError(f"{self.name}: plan takes {', '.join(expected)}; given: {', '.join(sorted(metadata))}")
        for dim, size in bind_dims(self.op.metadata, {n: tuple(t.shape) for n, t in metadata.items()}).items():
            bound = self.static.get(f"shape.{dim}", size)
            if bound != size:
                raise CallError(f"{self.name}: metadata have {dim}={size}, but the site was bound to {dim}={bound}")
        if self._dispatcher.watcher is not None:
            self._dispatcher.watcher.plan(self, metadata)
        plan = self._entry(self.facts_of(dims)).prepared.plan
        return plan(metadata) if plan is not None else None

    def plan_key(self, **dims: int) -> object:
        """Sites of one engine with equal keys can share the state that ``plan`` returns."""
        entry = self._entry(self.facts_of(dims))
        own = entry.prepared.plan_key
        return entry.kernel.id, self.name if own is None else own  # a kernel without a key shares nothing

    def refresh(self, weights: Mapping[str, Any]) -> None:
        """Take new weights of the same shapes in place, so that captured graphs stay valid.

        Quantized ones are given in the plain layout, as when the site was bound.

        Raises:
            CallError: other names or shapes than the site was bound with, or a kernel that cannot refresh. Nothing is
                written then.
        """
        self.require_refreshable()
        if set(weights) != set(self.weights):
            raise CallError(f"{self.name}: refresh takes {', '.join(self.weights)}; given: {', '.join(weights)}")
        for name, old in self.weights.items():
            want, got = (tuple(getattr(w, "shape", ())) for w in (old, weights[name]))
            if want != got:
                raise CallError(f"{self.name}: refresh needs {name} of shape {want}, given {got}")
        weights = self.lowering.packed(weights)
        for entry in self.memo.entries():
            if entry.prepared.refresh is not None:
                entry.prepared.refresh(weights)
        # Calls that are decided later read these; tensors keep their memory, so that nothing is held twice.
        self.weights = {name: renewed(old, weights[name]) for name, old in self.weights.items()}

    def require_refreshable(self) -> None:
        """Check that every kernel that was chosen here, also for the parts of a composite op, can take new weights in
        place.

        Raises:
            CallError: one cannot; it is named.
        """
        for site in self.walk():
            for entry in site.memo.entries() if site.weights else ():
                if entry.prepared.refresh is None:
                    raise CallError(
                        f"{site.name}: {entry.kernel.id} cannot take new weights in place; "
                        "bind the site again (make a new engine), or choose another kernel with a policy"
                    )

    def chained(self, policy: Policy) -> Parts | None:
        """What ``policy`` says of the call sites of the chain that was bound, or None without one."""
        if self.chain is None:
            return None
        calls = {site.name: site.static for site in self.chain.sites}
        return chained_parts(calls, self._dispatcher.catalog, policy, self.static.get("role"))

    def chosen(self, inputs: tuple[Any, ...]) -> Kernel:
        """The kernel that a call with these inputs runs."""
        return self._entry(self.facts_of_call(inputs)).kernel

    def facts_of_call(self, inputs: tuple[Any, ...]) -> Facts:
        """The facts of a call with these inputs, of which optional ones at the end may be left out, as in the call."""
        return self.reader.facts((*inputs, *(None for _ in self.op.inputs[len(inputs) :])))

    def prepared(self, inputs: tuple[Any, ...]) -> Prepared:
        """The kernel that a call with these inputs runs, as it was made ready for it."""
        return self._entry(self.facts_of_call(inputs)).prepared

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every decision made so far."""
        return tuple(entry.decision for entry in self.memo.entries())

    @property
    def dynamic(self) -> bool:
        """Whether calls of this site can be told apart: a predicate, or a chosen kernel, reads an open fact."""
        return bool(self.memo.reads(self.open))

    @property
    def inner(self) -> tuple[Site, ...]:
        """The sites of a composite op's parts, where it was decided to run as a chain of them."""
        return tuple(site for entry in self.memo.entries() for site in entry.sites)

    def walk(self) -> Iterator[Site]:
        """This site, then those inside it."""
        yield self
        for site in self.inner:
            yield from site.walk()

    # Freezing

    def thaw(self) -> None:
        """Decide new calls again, and let the sites of a chain that may come to run in this one's place."""
        for site in self.chain.sites if self.chain is not None else ():
            site.thaw()
        self.frozen = False
        self._shortcuts = Shortcuts(self, self.reader.present, dtypes=True)
        self.run = self._shortcuts.run

    def forget(self) -> None:
        """Forget what was decided, and decide new calls again."""
        self.memo = Memo(self.memo.cells)
        self.thaw()

    def settle(self) -> None:
        """Decide a static site that no call has decided. Nothing is prepared for it where the kernel reads an open
        fact, which only a call has: by that choice the site is dynamic."""
        if not self.dynamic and not self.frozen and not self._dispatcher.node(self, self.static).names:
            self._entry(self.static)

    def freeze(self) -> None:
        """Decide nothing any more. A static site must have been settled."""
        self.frozen = True
        if not self.dynamic:
            entry = self._entry(self.static)
            self.run = entry.prepared.run if _ready(entry) else self._first_run(entry)
            return
        reads = self.memo.reads(self.open)
        dims = self.open_dims if reads - self.open_dims else reads  # what is derived may follow from any dimension
        keyed = tensors_with(self.reader.present, {name[6:] for name in dims})
        self._shortcuts = Shortcuts(self, keyed, dtypes=False)
        self.run = self._shortcuts.run

    def _first_run(self, entry: Entry) -> Callable[..., Any]:
        """Run once eagerly, as the kernel asks before it can be captured, then become its ``run``."""

        def run(*inputs: Any, out: Any = None, state: Any = None) -> Any:
            self._dispatcher.refuse_capture(self, _WARMUP)
            result = entry.prepared.run(*inputs, out=out, state=state)
            entry.warm = True
            if self.run is run:  # unless another thread has thawed the site meanwhile
                self.run = entry.prepared.run
            return result

        return run

    # The slow path

    def prepared_run(self, inputs: tuple[Any, ...], out: Any, state: Any) -> tuple[Any, Callable[..., Any]]:
        """A call that was not met before: check it, find or make its entry, run that; the result and the ``run``."""
        facts = self.reader.facts(inputs)
        if out is not None:
            self._outputs.check(facts, inputs, out)
        if self._dispatcher.watcher is not None:
            self._dispatcher.watcher.see(self, facts)
        entry = self._entry(facts)
        if not _ready(entry):
            self._dispatcher.refuse_capture(self, _WARMUP)
        result = entry.prepared.run(*inputs, out=out, state=state)
        entry.warm = True
        return result, entry.prepared.run

    def check_out(self, inputs: tuple[Any, ...], out: Any) -> None:
        """Refuse an ``out`` that a call with these inputs cannot write its results to.

        Raises:
            CallError: it has another number of tensors, shape, dtype or device, or elements that share memory.
        """
        self._outputs.check(self.reader.facts(inputs), inputs, out)

    def _entry(self, facts: Facts) -> Entry:
        entry = self.memo.find(facts)
        if entry is None:
            self._dispatcher.refuse_capture(self, "it is not decided yet")
            if self.frozen:
                raise self._unseen(facts)
            entry = self._dispatcher.decide(self, facts)
        return entry

    def _unseen(self, facts: Facts) -> FrozenSiteError:
        shown = ", ".join(f"{name}={facts[name]}" for name in sorted(self.open) if name in facts) or "such facts"
        return FrozenSiteError(
            f"site {self.name} is frozen and has decided no call with {shown}; "
            f"run such a call before freeze(), or thaw() the dispatcher, run it and freeze again"
        )

    def facts_of(self, dims: Mapping[str, int]) -> Facts:
        """The facts of a call with these dimensions.

        Raises:
            CallError: an unknown dimension, one that was fixed when the site was bound, or one missing that matters.
        """
        known = sorted(d.name for d in self.op.dims)
        for name, size in dims.items():
            if name not in known:
                raise CallError(f"{self.name}: {self.op.name} has no dimension {name!r}; it has: {', '.join(known)}")
            bound = self.static.get(f"shape.{name}", size)
            if bound != size:
                raise CallError(f"{self.name}: {name}={size}, but the site was bound to {name}={bound}")
        facts = self.reader.with_dims(dims)
        missing = sorted(name[6:] for name in self.open_dims & self.memo.reads(self.open) if name not in facts)
        if missing:
            raise CallError(f"{self.name}: the decision depends on {', '.join(missing)}; give {'=…, '.join(missing)}=…")
        return facts


def _ready(entry: Entry) -> bool:
    return entry.warm or entry.kernel.capture is not Capture.AFTER_WARMUP
