"""Telling plug-ins about decisions, without letting one of them disturb the dispatcher."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("phyai.plugins")


class Observers:
    """The ``phyai_decision_made`` hooks of a catalog. A hook that raises is reported once, and skipped from then on."""

    def __init__(self, observers: tuple[tuple[str, Callable[[Any], None]], ...] = ()) -> None:
        self._observers = observers
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._observers)

    def decision_made(self, decision: object) -> None:
        """Call every observer with ``decision``."""
        for name, observe in self._observers:
            try:
                observe(decision)
            except Exception as error:
                self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        with self._lock:
            kept = tuple(entry for entry in self._observers if entry[0] != name)
            first = len(kept) < len(self._observers)
            self._observers = kept
        if first:
            _log.warning("plug-in %s raised in phyai_decision_made and is not told of decisions any more: %s: %s",
                         name, type(error).__name__, error)  # fmt: skip
