"""The ``run`` of a site that tells its calls apart, and what it remembers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phyai.dispatch.reader import MAX_SHORTCUTS, guard, shortcut_key

if TYPE_CHECKING:
    from phyai.dispatch.site import Site


class Shortcuts:
    """The ``run`` of a site, with what it remembers by shape. Bounded: beyond that it starts afresh."""

    __slots__ = ("_dtypes", "_fitting", "_found", "_keyed", "_site", "run")

    def __init__(self, site: Site, keyed: tuple[Any, ...], *, dtypes: bool) -> None:
        self._site = site
        self._keyed = keyed
        self._dtypes = dtypes
        self._found: dict[Any, Callable[..., Any]] = {}
        self._fitting: set[Any] = set()
        self.run = guard(
            site.op, site.reader.present, self._found, self._slow,
            keyed=keyed, dtypes=dtypes, fitting=self._fitting, fit=self._fit,
        )  # fmt: skip

    def _slow(self, inputs: tuple[Any, ...], out: Any, state: Any) -> Any:
        result, run = self._site.prepared_run(inputs, out, state)
        named = dict(zip((t.name for t in self._site.op.inputs), inputs, strict=True))
        if len(self._found) >= MAX_SHORTCUTS:
            self._found.clear()
        self._found[shortcut_key(named, self._keyed, dtypes=self._dtypes)] = run
        return result

    def _fit(self, looks: Any, inputs: tuple[Any, ...], out: Any) -> None:
        self._site.check_out(inputs, out)
        if len(self._fitting) >= MAX_SHORTCUTS:
            self._fitting.clear()
        if looks is not None:
            self._fitting.add(looks)
