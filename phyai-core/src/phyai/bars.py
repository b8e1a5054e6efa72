"""A bar for work that takes long, where somebody watches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

#: Told how much is done, and of how much.
Report = Callable[[float, float], None]


@contextlib.contextmanager
def bar(title: str) -> Iterator[Report]:
    """Progress on stderr where that is a terminal, and nothing anywhere else; the bar removes itself.

    >>> with bar("compiling") as report:
    ...     report(1, 2)
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
