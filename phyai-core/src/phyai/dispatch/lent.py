"""The engine's resources as one ``prepare`` sees them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from phyai.composite import part_facts
from phyai.dispatch.layouts import Lowering
from phyai.dispatch.site import Site
from phyai.policy import Policy

if TYPE_CHECKING:
    from phyai.dispatch.dispatcher import Dispatcher


class Lent:
    """Implements :class:`phyai.kernel.Resources` for the preparation of one kernel at one site.

    ``made`` are the sites of a composite op's parts that it was asked for; they count once ``prepare`` succeeded.
    """

    def __init__(self, dispatcher: Dispatcher, site: Site, policy: Policy) -> None:
        self.made: list[Site] = []
        self._dispatcher = dispatcher
        self._site = site
        self._policy = policy

    def workspace(self, key: str, nbytes: int) -> Any:
        return self._dispatcher.resources.workspace(key, nbytes)

    def shared(self, key: Hashable, make: Callable[[], Any]) -> Any:
        return self._dispatcher.resources.shared(key, make)

    @property
    def rows(self) -> tuple[int, int] | None:
        return self._site.lowering.rows

    def chain(self) -> Callable[..., Any]:
        if self._site.chain is None:
            raise RuntimeError(f"{self._site.name} was bound without a chain of layers")
        return self._site.chain.run

    def site(self, part: str, op: str, facts: Mapping[str, Any], weights: Mapping[str, Any]) -> Site:
        """The call site of the part of that name, with the facts that follow from the composite's."""
        parent = self._site
        record = next(p for p in parent.op.parts if p.name == part)
        signature = self._dispatcher.catalog.op(op)
        static = part_facts(parent.op, record, signature, facts)
        name = f"{parent.name}/{part}:{signature.name}"
        lowering = Lowering(static, rows=parent.lowering.rows)
        made = Site(self._dispatcher, signature, name, static, dict(weights), self._policy, lowering)
        self.made.append(made)
        return made
