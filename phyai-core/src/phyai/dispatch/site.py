"""Call sites: what a layer holds and calls.

``site.run(*inputs, out=None, state=None)`` is an attribute that freezing replaces, so call it through the
site. Open, it looks the call up by the shapes and dtypes of its inputs; what it has not met it checks against
the signature, and decides if no call of the kind was decided before. Frozen, a site at which no dynamic fact
matters *is* the prepared kernel, and any other keeps one look-up by shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from phyai.decision import Decision
from phyai.dispatch.memo import Cells, Entry, Memo, open_facts
from phyai.dispatch.reader import MAX_SHORTCUTS, Reader, guard, shortcut_key, tensors_with
from phyai.errors import CallError, FrozenSiteError
from phyai.facts import Facts
from phyai.kernel import Capture
from phyai.op import Op, bind_dims

if TYPE_CHECKING:
    from phyai.dispatch.dispatcher import Dispatcher


class Site:
    """One call site. Made by :meth:`phyai.dispatch.Dispatcher.bind`."""

    __slots__ = (
        "_dispatcher", "_keyed", "_memo", "_reader", "_shortcuts", "_weights",
        "frozen", "name", "op", "open", "parent", "run", "static",
    )  # fmt: skip

    run: Callable[..., Any]

    def __init__(
        self,
        dispatcher: Dispatcher,
        op: Op,
        name: str,
        static: Facts,
        weights: Mapping[str, Any],
        parent: Site | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self.op = op
        self.name = name
        #: Facts known since the site was bound, and the names of those that calls add.
        self.static = static
        self.open = open_facts(op, static)
        self.parent = parent
        self.frozen = False
        self._weights = weights
        self._reader = Reader(op, name, static)
        self._shortcuts: dict[Any, Callable[..., Any]] = {}
        self._keyed = self._reader.present
        self._memo = Memo(Cells(op, static, dispatcher.catalog, dispatcher.policy))
        self.thaw()

    def __repr__(self) -> str:
        return f"<Site {self.name}{' frozen' if self.frozen else ''}>"

    # What a layer or an engine asks

    def decide(self, **dims: int) -> Decision:
        """The decision for a call with these dimensions, remembered like that of a call; nothing is run.

        Raises:
            CallError: an unknown dimension, or one that was fixed when the site was bound.
            NoKernelError: no kernel may run such a call.
        """
        return self._entry(self._facts_of(dims)).decision

    def plan(self, metadata: Mapping[str, Any], **dims: int) -> Any:
        """What the kernel's ``plan`` returns for ``metadata``: give it to ``run`` as ``state``.

        ``dims`` are dimensions of the call to come that matter to the decision (``T=50``). Sites whose
        :meth:`plan_key` is equal can share a state. None when the kernel plans nothing.

        Raises:
            CallError: metadata that the signature does not have, misshapen ones, or a dimension missing.
        """
        expected = {t.name for t in self.op.metadata}
        if set(metadata) != expected:
            raise CallError(
                f"{self.name}: plan takes {', '.join(sorted(expected))}; given: {', '.join(sorted(metadata))}"
            )
        bind_dims(self.op.metadata, {name: tuple(value.shape) for name, value in metadata.items()})
        plan = self._planned(dims).prepared.plan
        return plan(metadata) if plan is not None else None

    def plan_key(self, **dims: int) -> object:
        """Sites of one engine with equal keys can share the state that ``plan`` returns."""
        entry = self._planned(dims)
        return (entry.decision.kernel.id if entry.decision.kernel else None, entry.prepared.plan_key)

    def refresh(self, weights: Mapping[str, Any]) -> None:
        """Take new weights of the same shapes in place, so that captured graphs stay valid.

        Raises:
            CallError: other names or shapes than the site was bound with, or a kernel that cannot refresh.
        """
        for name, old in self._weights.items():
            new = weights.get(name)
            shapes = tuple(getattr(old, "shape", ())), tuple(getattr(new, "shape", ()))
            if new is None or shapes[0] != shapes[1]:
                raise CallError(
                    f"{self.name}: refresh needs {name} of shape {shapes[0]}, given {new is not None and shapes[1]}"
                )
        entries = self._memo.entries()
        stuck = next((e.decision.kernel.id for e in entries if e.prepared.refresh is None and e.decision.kernel), None)
        if stuck is not None:
            raise CallError(f"{self.name}: {stuck} cannot take new weights in place; bind the site again")
        for entry in entries:
            if entry.prepared.refresh is not None:
                entry.prepared.refresh(weights)
        self._weights = dict(weights)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every decision made so far."""
        return tuple(entry.decision for entry in self._memo.entries())

    @property
    def dynamic(self) -> bool:
        """Whether calls of this site can be told apart: a predicate, or a chosen kernel, reads an open fact."""
        return bool(self._memo.cells) or any(node.names for node in self._memo.nodes.values())

    # Freezing

    def thaw(self) -> None:
        """Decide new calls again."""
        self.frozen = False
        self._keyed = self._reader.present
        self._install(dtypes=True)

    def freeze(self) -> None:
        """Decide nothing any more. A static site that is still undecided is decided now."""
        if not self.dynamic:
            entry = self._entry(self.static)
            if not self.dynamic:  # the winner may specialize on something
                self.frozen = True
                self.run = entry.prepared.run if self._ready(entry) else self._first_run(entry)
                return
        self.frozen = True
        dims = {name[6:] for name in self.open if name.startswith("shape.")}
        self._keyed = tensors_with(self._reader.present, dims) or self._reader.present
        self._install(dtypes=False)

    @staticmethod
    def _ready(entry: Entry) -> bool:
        kernel = entry.decision.kernel
        return entry.warm or kernel is None or kernel.capture is not Capture.AFTER_WARMUP

    def _first_run(self, entry: Entry) -> Callable[..., Any]:
        """Run once eagerly, as the kernel asks before it can be captured, then become its ``run``."""

        def run(*inputs: Any, out: Any = None, state: Any = None) -> Any:
            self._dispatcher.refuse_capture(self, "its kernel wants one eager call first")
            result = entry.prepared.run(*inputs, out=out, state=state)
            entry.warm = True
            self.run = entry.prepared.run
            return result

        return run

    # The slow path

    def _install(self, *, dtypes: bool) -> None:
        self._shortcuts = {}
        self.run = guard(self.op, self._reader.present, self._shortcuts, self._slow, keyed=self._keyed, dtypes=dtypes)

    def _slow(self, inputs: tuple[Any, ...], out: Any, state: Any) -> Any:
        """A call whose shapes were not met before: check it, find or make its entry, and run that."""
        entry = self._entry(self._reader.facts(inputs))
        if not self._ready(entry):
            self._dispatcher.refuse_capture(self, "its kernel wants one eager call first")
        result = entry.prepared.run(*inputs, out=out, state=state)
        entry.warm = True
        named = dict(zip((t.name for t in self.op.inputs), inputs, strict=True))
        if len(self._shortcuts) >= MAX_SHORTCUTS:
            self._shortcuts.clear()
        self._shortcuts[shortcut_key(named, self._keyed, dtypes=not self.frozen)] = entry.prepared.run
        return result

    def _entry(self, facts: Facts) -> Entry:
        entry = self._memo.find(facts)
        if entry is None:
            self._dispatcher.refuse_capture(self, "it is not decided yet")
            if self.frozen:
                raise self._unseen(facts)
            entry = self._dispatcher.decide(self, facts)
        return entry

    def _unseen(self, facts: Facts) -> FrozenSiteError:
        shown = ", ".join(f"{name}={facts[name]}" for name in sorted(self.open) if name in facts)
        return FrozenSiteError(
            f"site {self.name} is frozen and has decided no call with {shown}; "
            f"run such a call before freeze(), or thaw() the dispatcher, run it and freeze again"
        )

    def _facts_of(self, dims: Mapping[str, int]) -> Facts:
        known = {d.name for d in self.op.dims}
        for name, size in dims.items():
            if name not in known:
                raise CallError(
                    f"{self.name}: {self.op.name} has no dimension {name!r}; it has: {', '.join(sorted(known))}"
                )
            bound = self.static.get(f"shape.{name}", size)
            if bound != size:
                raise CallError(f"{self.name}: {name}={size}, but the site was bound to {name}={bound}")
        return self._reader.with_dims(dims)

    def _planned(self, dims: Mapping[str, int]) -> Entry:
        facts = self._facts_of(dims)
        missing = [name[6:] for name in self.needs() if name not in facts]
        if missing:
            raise CallError(f"{self.name}: the decision depends on {', '.join(missing)}; give it to plan as well")
        return self._entry(facts)

    def needs(self) -> tuple[str, ...]:
        """Open dimensions on which the decision depends."""
        if self._memo.cells.parts:
            return tuple(sorted(name for name in self.open if name.startswith("shape.")))
        read = {literal.fact for literal in self._memo.cells.literals}
        read |= {name for node in self._memo.nodes.values() for name in node.names}
        return tuple(sorted(name for name in read if name.startswith("shape.")))
