"""Deciding a site's calls: resolved, prepared and remembered once for each that can be told apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from phyai.catalog import Catalog
from phyai.decision import Decision
from phyai.dispatch.guard import PrepareFacts
from phyai.dispatch.lent import Lent
from phyai.dispatch.memo import Entry, Memo, Node, node_of
from phyai.dispatch.site import Site
from phyai.dispatch.told import Told
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.memory import may_be_the_kernels
from phyai.policy import Policy
from phyai.resolver import resolve


class Decider:
    """Decides for the sites of one dispatcher, which holds its lock around every call.

    ``lend`` makes what a site's kernels are lent when they are prepared. ``excluded`` maps kernels that are never
    chosen again to why; ``told`` logs what is to be said of decisions.
    """

    def __init__(self, catalog: Catalog, environment: Environment, lend: Callable[[Site, Policy], Lent]) -> None:
        self.told = Told(catalog, environment)
        self.excluded: dict[str, str] = {}
        self._catalog, self._environment, self._lend = catalog, environment, lend

    def entry(self, site: Site, memo: Memo, facts: Facts, policy: Policy) -> Entry:
        """The entry in ``memo`` for a call of ``site`` with ``facts`` under ``policy``, made if it is new.

        A kernel whose ``prepare`` raises is a rejected candidate, and the next one is taken. Memory that runs out
        meanwhile says nothing of the kernel: that error is raised as it is, and nothing is remembered.

        Raises:
            NoKernelError: no kernel may run it.
        """
        node = self.node(site, memo, facts, policy)
        while True:
            values = node.values(facts)
            child = node.children.get(values)
            if isinstance(child, Entry):
                return child
            if child is None:
                try:
                    child = node.children[values] = self._prepared(site, node, facts, policy)
                except Exception as error:
                    if not may_be_the_kernels(error):
                        raise
                    failed = {**node.failed, node.kernel.id: f"prepare failed: {type(error).__name__}: {error}"}
                    child = node.children[values] = self._decided(site, facts, policy, failed)
            if isinstance(child, Entry):
                return child
            node = child

    def node(self, site: Site, memo: Memo, facts: Facts, policy: Policy) -> Node:
        """What is decided for such a call, remembered in ``memo``, with nothing prepared for it.

        Raises:
            NoKernelError: no kernel may run it.
        """
        cell = memo.cells(facts)
        node = memo.nodes.get(cell)
        if node is None:
            node = memo.nodes[cell] = self._decided(site, facts, policy, {})
        return node

    def _decided(self, site: Site, facts: Facts, policy: Policy, failed: Mapping[str, str]) -> Node:
        failed = {**self.excluded, **failed}
        decision = self._resolved(site, facts, policy, failed)
        self.told.tell(decision)
        self._catalog.observers.decision_made(decision)
        return node_of(site, decision, failed)

    def _prepared(self, site: Site, node: Node, facts: Facts, policy: Policy) -> Entry:
        lent = self._lend(site, policy)
        guarded = PrepareFacts(facts, node.kernel, site.open)
        prepared = node.kernel.load()(guarded, site.weights, node.decision.params, lent)
        decision = node.decision
        if decision.facts != facts:  # entries of one cell share the outcome; each shows the call that it was made for
            decision = self._resolved(site, facts, policy, node.failed)
        return Entry(decision, node.kernel, prepared, tuple(lent.made), node.failed)

    def _resolved(self, site: Site, facts: Facts, policy: Policy, failed: Mapping[str, str]) -> Decision:
        parts = site.chained(policy)
        return resolve(facts, self._catalog, policy, self._environment, failed=failed, parts=parts)
