"""Saying a warning once, where the same model is loaded again and again."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def warnings_once() -> Iterator[None]:
    """Within it, a message of the dispatcher that was written before is not written again."""
    said: set[str] = set()

    def new(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        known = message in said
        said.add(message)
        return not known

    log = logging.getLogger("phyai.dispatch")
    log.addFilter(new)
    try:
        yield
    finally:
        log.removeFilter(new)
