"""What a dispatcher tells of its decisions: each warning once, in the log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from phyai.catalog import Catalog
from phyai.decision import Decision
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.resolver.fallback import serving_backends, where

_log = logging.getLogger("phyai.dispatch")


class Told:
    """The warnings that were logged already, and those that wait to be said together."""

    def __init__(self, catalog: Catalog, environment: Environment) -> None:
        self._catalog, self._environment = catalog, environment
        self._said: set[str] = set()
        self._waiting: list[Decision] | None = None

    def tell(self, decision: Decision) -> None:
        """Log what was not said before."""
        for warning in decision.warnings:
            if warning in self._said:
                continue
            self._said.add(warning)
            if warning == decision.only_reference and self._waiting is not None:
                self._waiting.append(decision)
            else:
                _log.warning("%s", warning)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Within it, calls for which only a reference kernel is left are not told one by one: one line at its end
        names their ops."""
        if self._waiting is not None:
            yield
            return
        self._waiting = []
        try:
            yield
        finally:
            waiting, self._waiting = self._waiting, None
            if len(waiting) == 1:
                _log.warning("%s", waiting[0].only_reference)
            elif waiting:
                serving = serving_backends(self._catalog.kernels, where(Facts(self._environment.facts())))
                ops = ", ".join(sorted({decision.op for decision in waiting}))  # one text, whichever was met first
                serve = "serves" if len(serving) == 1 else "serve"
                why = f"although {' and '.join(serving)} {serve} this device; `phyai explain --op OP` says why"
                _log.warning("only reference kernels are left for %s, %s", ops, why)
